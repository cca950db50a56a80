"""A virtual host of RabbitMQ that may have no more queues, as hosted plans limit them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import amqp
import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from repot.chaos.runner.workers import start_worker
from repot.config import ExplicitSettings, Role
from repot.waiting import wait_until
from repot.worker.configure import configure
from support.shared_rabbitmq import ask, vhost_of, with_virtual_host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from repot.testbed import Server


@pytest.fixture
def limited(rabbitmq: Server) -> Iterator[Callable[[int], str]]:
    """Make a virtual host with a limit, and return its address."""
    with ExitStack() as made:

        def make(limit: int) -> str:
            found = made.enter_context(with_virtual_host(rabbitmq))
            ask(rabbitmq, "PUT", f"vhost-limits/{vhost_of(found)}/max-queues", {"value": limit})
            return found.url

        yield make


@pytest.mark.parametrize(
    ("limit", "refused"),
    [(1, "the queue 'q-"), pytest.param(8, "celery_delayed_", marks=pytest.mark.promise)],
    ids=["tasks", "delays"],
)
def test_a_worker_ends_and_names_the_limit(
    limited: Callable[[int], str], tmp_path: Path, limit: int, refused: str
) -> None:
    """Celery's worker said that it was ready, without queues for delays, or ended with a traceback."""
    queue = f"q-{uuid4()}"
    given: dict[str, Any] = {"broker_url": limited(limit), "queue_names": (queue,), "result_backend": "rpc://"}
    given |= {"dead_letter_queue": f"{queue}-dead"}
    worker = start_worker(f"w-{queue}", queue, ExplicitSettings(**given), tmp_path)
    try:
        wait_until(lambda: worker.exit_code is not None, within_s=90, what="the worker ends")
    finally:
        worker.stop()
    log = worker.log_tail(10_000)
    assert worker.exit_code == 1
    assert "Traceback" not in log
    assert " ready." not in log
    (line,) = [one for one in log.splitlines() if "CRITICAL" in one]
    assert refused in line
    assert f"queue limit in vhost '{given['broker_url'].rpartition('/')[2]}' ({limit})" in line
    assert "needs 33 queues: 1 of tasks, 1 for dead letters, 28 for delays, 3 of the worker's own" in line
    assert "set_vhost_limits" in line
    assert "WORKER_QUEUE_TYPE=classic" in line


def test_a_delayed_task_is_not_lost_where_a_part_of_the_delays_exists(limited: Callable[[int], str]) -> None:
    """Its sender gets an error that names the limit, each time."""
    queue = f"q-{uuid4()}"
    client = Celery("test", set_as_current=False)
    given: dict[str, Any] = {"broker_url": limited(8), "queue_names": (queue,), "dead_letter_queue": f"{queue}-dead"}
    configure(client, ExplicitSettings(**given), Role.CLIENT)
    for _ in range(2):
        with pytest.raises((amqp.PreconditionFailed, OperationalError), match="queue limit in vhost"):
            client.send_task("repot.run", (0,), countdown=60, ignore_result=True)
    client.close()


def test_classic_queues_need_no_queues_for_delays(limited: Callable[[int], str], tmp_path: Path) -> None:
    """What the error proposes: 2 queues, and those of one worker."""
    queue = f"q-{uuid4()}"
    given: dict[str, Any] = {"broker_url": limited(5), "queue_names": (queue,), "result_backend": "rpc://"}
    given |= {"dead_letter_queue": f"{queue}-dead", "queue_type": "classic"}
    worker = start_worker(f"w-{queue}", queue, ExplicitSettings(**given), tmp_path)
    try:
        wait_until(lambda: " ready." in worker.log_tail(10_000), within_s=90, what="the worker is ready")
    finally:
        worker.stop()
