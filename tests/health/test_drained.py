"""A broker is drained when no queue of it holds a message, whichever queues its worker reads."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from redis import Redis

from repot.config import ExplicitSettings
from repot.healthcheck import queue_counts
from repot.healthcheck.queue_counts import QueueCounter
from repot.testbed import redis_server
from repot.worker.status_file import Link
from support.moves import task

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from repot.testbed import Server


@pytest.fixture
def source() -> Iterator[Server]:
    with redis_server() as found:
        yield found


def put(server: Server, queue: str) -> None:
    with closing(server.open()) as broker:
        (receipt,) = broker.publish(queue, [task(1)])
    assert receipt.is_confirmed


def drained(counter: QueueCounter, server: Server) -> bool | None:
    link = Link(server.url, server.url, "celery", {}, queues=("orders",))
    # a status with what the counter reads of it
    status: Any = SimpleNamespace(node="w", link=link, pool=SimpleNamespace(reserved=0))
    (total,) = counter.totals(status, counter.count(link))
    return total.is_drained


def test_a_queue_that_no_worker_here_reads_is_not_drained(
    source: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_counts, "_LOOK_S", 0.0)
    settings = ExplicitSettings(broker_url=source.url, status_dir=tmp_path, queue_names=("orders",))
    counter = QueueCounter(settings, 5)
    with closing(counter):
        assert drained(counter, source)
        for queue in (f"slow-{uuid4()}", "mail.dead"):
            put(source, queue)
            assert drained(counter, source) is False
            with Redis.from_url(source.url) as client:
                client.delete(queue)
            assert drained(counter, source)


def test_what_cannot_be_looked_for_is_not_drained(source: Server, tmp_path: Path) -> None:
    with Redis.from_url(source.url) as client:
        command: Any = client.execute_command
        command("ACL SETUSER", "looker", "on", ">secret", "~*", "&*", "+@all", "-scan")
    url = source.url.replace("redis://", "redis://looker:secret@")
    settings = ExplicitSettings(broker_url=url, status_dir=tmp_path, queue_names=("orders",))
    with closing(QueueCounter(settings, 5)) as counter:
        assert None is drained(counter, source)
