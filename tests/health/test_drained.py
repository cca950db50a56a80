"""A broker is drained when no queue of it holds a message, whichever queues its worker reads."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from kombu import Connection, Producer, Queue
from redis import Redis

from repot.brokers.redis.adapter import RedisBroker
from repot.config import BrokerUrl, ExplicitSettings
from repot.errors import DepthUnknown
from repot.healthcheck import queue_counts
from repot.healthcheck.queue_counts import QueueCounter
from repot.testbed import redis_server
from repot.worker.status_file import Link
from support.moves import task

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from repot.brokers import Depth
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


def test_a_queue_that_cannot_be_counted_leaves_the_others_their_counts(
    source: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose node is down; the broker itself answers."""
    put(source, "mail")
    depth = RedisBroker.depth

    def of_all_but_one(broker: RedisBroker, queue: str) -> Depth:
        if queue == "orders":
            message = "its node is down"
            raise DepthUnknown(message)
        return depth(broker, queue)

    monkeypatch.setattr(RedisBroker, "depth", of_all_but_one)
    settings = ExplicitSettings(broker_url=source.url, status_dir=tmp_path)
    with closing(QueueCounter(settings, 5)) as counter:
        link = Link(source.url, source.url, "celery", {}, queues=("mail", "orders", "slow"))
        found = {one.queue: one.depth and one.depth.ready for one in counter.count(link)}
    assert {name: found[name] for name in link.queues} == {"mail": 1, "orders": None, "slow": 0}


def test_the_other_broker_is_counted_with_the_options_of_the_application(
    source: Server, redis: Server, tmp_path: Path
) -> None:
    """A prefix that only the application states; 0 would be a lie."""
    options = {"global_keyprefix": "shop:"}
    with Connection(redis.url, transport_options=options) as connection:
        Producer(connection.channel()).publish("body", routing_key=(queue := f"q-{uuid4()}"), declare=[Queue(queue)])
    settings = ExplicitSettings(broker_url=source.url, status_dir=tmp_path)
    with closing(QueueCounter(settings, 5, BrokerUrl.parse(redis.url))) as counter:
        counts = counter.count(Link(source.url, source.url, "celery", options, queues=(queue,)))
    found = {one.broker: one.depth and one.depth.ready for one in counts if one.queue == queue}
    assert found == {source.url: 0, redis.url: 1}


def test_what_cannot_be_looked_for_is_not_drained(source: Server, tmp_path: Path) -> None:
    with Redis.from_url(source.url) as client:
        command: Any = client.execute_command
        command("ACL SETUSER", "looker", "on", ">secret", "~*", "&*", "+@all", "-scan")
    url = source.url.replace("redis://", "redis://looker:secret@")
    settings = ExplicitSettings(broker_url=url, status_dir=tmp_path, queue_names=("orders",))
    with closing(QueueCounter(settings, 5)) as counter:
        assert None is drained(counter, source)
