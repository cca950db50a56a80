"""A virtual host of RabbitMQ that may have no more queues, as hosted plans limit them."""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import amqp
import pytest
from celery import Celery
from kombu import Connection, Exchange
from kombu.exceptions import OperationalError

from repot.brokers.moving import Outgoing
from repot.chaos.instruments.journal import DELIVERED, ENDED, READY, STARTED, Journal
from repot.chaos.runner.workers import start_worker
from repot.config import ExplicitSettings, Role
from repot.upstream import delay_queues
from repot.waiting import wait_until
from repot.worker.configure import configure
from support.moves import task
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
    assert "a lower WORKER_DELAY_LEVELS" in line
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


@pytest.mark.parametrize("is_partial", [False, True], ids=["fewer", "interrupted"])
def test_a_sender_of_all_levels_gets_an_error_where_there_are_fewer(
    limited: Callable[[int], str], is_partial: bool
) -> None:
    """An exchange of a level whose queue was refused drops what it gets, and RabbitMQ confirms it."""
    queue = f"q-{uuid4()}"
    given: dict[str, Any] = {"broker_url": limited(6), "queue_names": (queue,), "dead_letter_queue": f"{queue}-dead"}
    with Connection(given["broker_url"]) as connection:
        delay_queues.declare(connection, "quorum", 4)
        if is_partial:
            # as a worker of stock Celery leaves it
            Exchange("celery_delayed_27", type="topic").bind(connection.channel()).declare()
    client = Celery("test", set_as_current=False)
    configure(client, ExplicitSettings(**given), Role.CLIENT)
    for _ in range(2):
        with pytest.raises((amqp.PreconditionFailed, OperationalError), match="queue limit in vhost"):
            client.send_task("repot.run", (0,), countdown=60, ignore_result=True)
    client.close()


class _Few:
    """A worker, and a client, of two levels: RabbitMQ delays a task for 3 s at a time."""

    def __init__(self, url: str, directory: Path, *options: str) -> None:
        self.queue = f"q-{uuid4()}"
        self.given: dict[str, Any] = {"broker_url": url, "queue_names": (self.queue,), "result_backend": "disabled"}
        self.given |= {"dead_letter_queue": f"{self.queue}-dead", "delay_levels": 2, "journal": directory / "journal"}
        self.journal = Journal(directory / "journal")
        settings = ExplicitSettings(**self.given)
        self.worker = start_worker(f"w-{self.queue}", self.queue, settings, directory, options=options)
        self.client = Celery("test", set_as_current=False)
        configure(self.client, settings, Role.CLIENT)
        self.await_times(READY)

    def send(self, **options: Any) -> str:
        name = str(uuid4())
        self.client.send_task("repot.run", (0,), task_id=name, ignore_result=True, **options)
        return name

    def times(self, kind: str, name: str = "") -> list[float]:
        return [line.at for line in self.journal.read() if (line.kind, line.task) == (kind, name)]

    def await_times(self, kind: str, name: str = "") -> list[float]:
        def seen() -> list[float]:
            assert self.worker.exit_code is None, self.worker.log_tail(40)
            return self.times(kind, name)

        return wait_until(seen, within_s=90, what=f"{kind} {name}")


@contextmanager
def _few(url: str, directory: Path, *options: str) -> Iterator[_Few]:
    found = _Few(url, directory, *options)
    try:
        yield found
    finally:
        found.worker.stop()
        found.client.close()


@pytest.mark.parametrize("pool", [pytest.param("prefork", marks=pytest.mark.promise), "gevent", "solo"])
def test_fewer_levels_fit_and_keep_a_longer_countdown(limited: Callable[[int], str], tmp_path: Path, pool: str) -> None:
    """7 queues, and no task waits in the worker, whose only process goes on with others."""
    with _few(limited(7), tmp_path, "--pool", pool) as few:
        at = monotonic()
        late, soon = few.send(countdown=8), few.send(countdown=2)
        between = few.send(countdown=4)
        (started,) = few.await_times(STARTED, late)
        few.await_times(ENDED, late)
        assert 8 - 0.01 <= started - at <= 8 + 20
        # RabbitMQ delays whole seconds
        assert few.times(DELIVERED, late)[0] - at > 6.9
        assert few.times(STARTED, soon)[0] < started
        assert few.times(STARTED, between)[0] < started
        assert len(few.times(STARTED, late)) == 1


def test_a_worker_holds_what_cannot_be_delayed_again(limited: Callable[[int], str], tmp_path: Path) -> None:
    """Without the exchange of the upper level; no task is early, and none is lost."""
    with _few(limited(7), tmp_path) as few:
        at = monotonic()
        late = few.send(countdown=8)
        with Connection(few.given["broker_url"]) as connection:
            Exchange("celery_delayed_1").bind(connection.channel()).delete()
        (started,) = few.await_times(STARTED, late)
        few.await_times(ENDED, late)
        assert 8 - 0.01 <= started - at <= 8 + 20
        assert "is not due and could not be delayed again" in few.worker.log_tail(200)
        assert len(few.times(STARTED, late)) == 1


def test_a_move_brings_a_long_countdown_to_fewer_levels(
    limited: Callable[[int], str], rabbitmq: Server, tmp_path: Path
) -> None:
    """The mover asks the broker: it does not know the settings of the workers."""
    url = limited(7)
    with _few(url, tmp_path) as few:
        due = datetime.now(UTC) + timedelta(seconds=6)
        headers = {"eta": due.isoformat(), "id": (name := str(uuid4())), "task": "repot.run", "root_id": name}
        one = Outgoing(few.queue, task(0, headers=headers), delay_s=6)
        with closing(replace(rabbitmq, url=url).open()) as broker:
            (receipt,) = broker.deliver([one])  # type: ignore[attr-defined]
        assert receipt.is_confirmed
        few.await_times(STARTED, name)
        assert datetime.now(UTC) >= due


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
