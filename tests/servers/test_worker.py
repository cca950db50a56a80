"""`celery -A repot.worker.app worker` on real brokers."""

from __future__ import annotations

import signal
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import Celery
from kombu import Connection, Queue

from repot.chaos.instruments.journal import DELIVERED, EFFECT, ENDED, READY, STARTED, Journal
from repot.chaos.runner.worker_process import READY_WITHIN_S
from repot.chaos.runner.workers import start_worker
from repot.config import ExplicitSettings, Role, celery_config
from repot.errors import DeadlineExceeded, DepthUnknown
from repot.testbed import rabbitmq_server
from repot.upstream import delay_queues
from repot.waiting import wait_until
from repot.worker.configure import configure
from support.releases import needs
from support.shared_rabbitmq import ask, vhost_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from repot.brokers.port import Broker
    from repot.config import WorkerSettings
    from repot.testbed import ReapedProcess, Server


class RunningWorker:
    """A worker, a client, and what the journal says."""

    def __init__(self, settings: WorkerSettings, worker: ReapedProcess) -> None:
        assert settings.journal is not None
        self.settings = settings
        self.worker = worker
        self.journal = Journal(settings.journal)
        self.client = Celery("test", set_as_current=False)
        configure(self.client, settings, Role.CLIENT)
        self.await_line(READY, within_s=READY_WITHIN_S)

    def send(self, name: str, *arguments: Any, **options: Any) -> str:
        task = str(uuid4())
        self.client.send_task(name, arguments, task_id=task, **options)
        return task

    def lines(self, what: str, task: str = "") -> list[dict[str, Any]]:
        return [line.details for line in self.journal.read() if (line.kind, line.task) == (what, task)]

    def await_line(self, what: str, task: str = "", number: int = 1, within_s: float = 30) -> None:
        def seen() -> bool:
            assert self.worker.exit_code is None, self.worker.log_tail(40)
            return len(self.lines(what, task)) >= number

        try:
            wait_until(seen, within_s=within_s, what=f"{what} {task}, {number} times")
        except DeadlineExceeded as error:
            error.add_note(self.worker.log_tail(40))
            raise


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., RunningWorker]]:
    """Start a worker with some settings; end it with the test."""
    with _starting(tmp_path) as begin:
        yield begin


@contextmanager
def _starting(directory: Path) -> Iterator[Callable[..., RunningWorker]]:
    workers = []

    def begin(url: str, results: str, **changes: Any) -> RunningWorker:
        names = (f"q-{uuid4()}",)
        settings = ExplicitSettings(
            broker_url=url,
            result_backend=results,
            queue_names=names,
            journal=directory / "journal",
            **{"dead_letter_queue": f"{names[0]}-dead"} | changes,
        )
        workers.append(start_worker(f"w-{uuid4()}", names[0], settings, directory))
        return RunningWorker(settings, workers[-1])

    yield begin
    for worker in workers:
        worker.stop()


@pytest.fixture
def running(server: Server, redis: Server, start: Callable[..., RunningWorker]) -> RunningWorker:
    return start(server.url, redis.results_url)


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def shared(
    request: pytest.FixtureRequest, redis: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningWorker]:
    """A worker that no test harms."""
    with _starting(tmp_path_factory.mktemp("shared")) as begin:
        yield begin(request.getfixturevalue(request.param).url, redis.results_url)


@pytest.mark.promise
def test_a_task_runs_once_and_has_its_effect(shared: RunningWorker) -> None:
    task = shared.send("repot.run", 0)
    shared.await_line(ENDED, task)
    (delivered,) = shared.lines(DELIVERED, task)
    assert (delivered["name"], delivered["redelivered"]) == ("repot.run", False)
    assert delivered["tag"]
    assert len(shared.lines(EFFECT, task)) == 1
    assert [one["state"] for one in shared.lines(ENDED, task)] == ["SUCCESS"]


@pytest.mark.promise("redis")
def test_a_ready_worker_logs_what_repot_set(shared: RunningWorker) -> None:
    def logged() -> list[str]:
        return [line for line in shared.worker.log_tail(1000).splitlines() if "] repot: " in line]

    # this test may be the first one of its worker
    wait_until(lambda: len(logged()) == 3, within_s=60, what="the worker is ready")
    lines = logged()
    assert f"reads {shared.settings.read_url}, stated in " in lines[0]
    assert f"dead letters go to {shared.settings.dead_letter_queue}" in lines[1]


def test_a_failing_task_fails(shared: RunningWorker) -> None:
    task = shared.send("repot.fail")
    shared.await_line(ENDED, task)
    assert [one["state"] for one in shared.lines(ENDED, task)] == ["FAILURE"]


@pytest.mark.promise("rabbitmq")
def test_a_killed_task_runs_again_but_not_for_ever(shared: RunningWorker) -> None:
    """`task_retry_on_worker_lost` keeps to max_retries, which is 2 for this task."""
    task = shared.send("repot.die")
    shared.await_line(STARTED, task, 3)
    after = shared.send("repot.run", 0)
    shared.await_line(ENDED, after)
    wait_until(lambda: shared.client.backend.get_state(task) == "FAILURE", within_s=20, what="it fails")
    assert [line["retries"] for line in shared.lines(STARTED, task)] == [0, 1, 2]


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_a_server_that_denies_transient_queues_is_served(
    rabbitmq: Server, redis: Server, start: Callable[..., RunningWorker], kind: str
) -> None:
    """RabbitMQ 4.3 as published: no queue that is neither durable nor exclusive, no prefetch of a whole channel."""
    if not rabbitmq.version.startswith("4.3"):
        pytest.skip("RabbitMQ 4.3 is the first that denies them")
    denied = ("transient_nonexcl_queues", "global_qos")
    with rabbitmq_server("\n".join(f"deprecated_features.permit.{one} = false" for one in denied)) as strict:
        running = start(strict.url, redis.results_url, queue_type=kind)
        task = running.send("repot.run", 0, countdown=1)
        running.await_line(ENDED, task)
        # the queues of a reply, and of events, which a worker has as well: this one was ready
        (answer,) = running.client.control.ping(timeout=10, limit=1) or [{}]
        assert list(answer.values()) == [{"ok": "pong"}]
        with running.client.connection_for_read() as connection:
            receiver = running.client.events.Receiver(connection)
            with receiver.consumer_context():
                assert receiver.queue.name


@needs("kombu", "5.5", "no queues of its own for delays")
def test_the_delays_that_repot_declares_for_an_older_kombu_are_kombus(rabbitmq: Server) -> None:
    """A queue with another argument would be refused (406), and a binding more or less is seen."""
    with Connection(rabbitmq.url) as connection:
        delay_queues.declare(connection, "quorum")
        bound = _bindings(rabbitmq)
        delay_queues._declare(connection, "quorum")
    assert bound == _bindings(rabbitmq)
    assert any(one["source"] == "celery_delayed_27" for one in bound)


def _bindings(server: Server) -> list[dict[str, Any]]:
    return sorted(ask(server, "GET", f"bindings/{vhost_of(server)}"), key=str)


def test_a_retrying_task_keeps_its_id(shared: RunningWorker) -> None:
    task = shared.send("repot.retry", 2)
    shared.await_line(ENDED, task, 3)
    # each run says so after it has stored its result: the last one may be quicker than the one before
    assert sorted(line["state"] for line in shared.lines(ENDED, task)) == ["RETRY", "RETRY", "SUCCESS"]


@pytest.mark.promise
def test_a_warm_shutdown_ends_with_success(running: RunningWorker) -> None:
    running.worker.signal(signal.SIGTERM)
    wait_until(lambda: running.worker.exit_code is not None, within_s=60, what="the worker leaves")
    assert running.worker.exit_code == 0


@pytest.mark.parametrize("soft_s", [0, pytest.param(3, marks=needs("celery", "5.5", "no soft shutdown"))])
def test_a_cold_shutdown_does_not_wait_for_a_task_that_has_just_begun(
    server: Server, redis: Server, start: Callable[..., RunningWorker], tmp_path: Path, soft_s: int
) -> None:
    """SIGQUIT arrives before the worker reads that a process of its pool has taken the task."""
    running = start(server.url, redis.results_url, app="support.pool_app", soft_shutdown_timeout=soft_s)
    (tmp_path / "unseen").touch()
    task = running.send("repot.run", 60)
    running.await_line(STARTED, task)
    since = monotonic()
    running.worker.signal(signal.SIGQUIT)
    running.worker.signal(signal.SIGCONT)
    wait_until(lambda: running.worker.exit_code is not None, within_s=60, what="the worker leaves")
    # a soft shutdown gives it its time
    assert monotonic() - since >= soft_s
    broker, queue = server.open(), running.settings.queue_names[0]
    wait_until(lambda: _ready(broker, queue) == 1, within_s=20, what="it is given back", poll_s=0.2)
    broker.close()


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_dead_letters_have_a_queue(
    rabbitmq: Server, redis: Server, start: Callable[..., RunningWorker], kind: str
) -> None:
    """A message that is rejected goes there, also before anything else declared that queue."""
    running = start(rabbitmq.url, redis.results_url, queue_type=kind)
    running.worker.stop()
    queue, dead = running.settings.queue_names[0], running.settings.dead_letter_queue
    with Connection(rabbitmq.url) as connection:
        channel: Any = connection.default_channel
        connection.Producer().publish({"poison": True}, routing_key=queue)
        wait_until(lambda: _reject(channel, queue), within_s=30, what="the message is there to reject")
        found = wait_until(lambda: channel.basic_get(dead, no_ack=True), within_s=30, what="the dead letter arrives")
    assert found.headers["x-death"][0]["reason"] == "rejected"


def test_a_dead_letter_queue_of_another_kind_is_taken_as_it_is(
    rabbitmq: Server, redis: Server, start: Callable[..., RunningWorker]
) -> None:
    """Declaring it with other arguments would end the worker."""
    name = f"dead-{uuid4()}"
    with Connection(rabbitmq.url) as connection:
        Queue(name)(connection.default_channel).declare()
    running = start(rabbitmq.url, redis.results_url, dead_letter_queue=name)
    running.await_line(ENDED, running.send("repot.run", 0))


def _ready(broker: Broker, queue: str) -> int | None:
    with suppress(DepthUnknown):
        return broker.depth(queue).ready
    return None


def _reject(channel: Any, queue: str) -> bool:
    message = channel.basic_get(queue)
    if message is not None:
        channel.basic_reject(message.delivery_tag, requeue=False)
    return message is not None


@pytest.mark.promise
def test_a_delayed_task_waits_in_rabbitmq_and_not_in_the_worker(
    rabbitmq: Server, redis: Server, start: Callable[..., RunningWorker]
) -> None:
    """Nothing is delivered before its time."""
    running = start(rabbitmq.url, redis.results_url)
    sent = monotonic()
    late = running.send("repot.run", 0, countdown=3)
    running.await_line(ENDED, late)
    delivered = {line.task: line.at for line in running.journal.read() if line.kind == DELIVERED}
    # RabbitMQ delays whole seconds
    assert delivered[late] - sent > 1.9


@pytest.mark.promise
def test_a_bridge_reads_one_broker_and_writes_the_other(
    rabbitmq: Server, redis: Server, tmp_path: Path, start: Callable[..., RunningWorker]
) -> None:
    """A task taken from Redis retries on RabbitMQ, where the bridge does not listen."""
    running = start(redis.url, redis.results_url, broker_read_url=redis.url, broker_write_url=rabbitmq.url)
    there = ExplicitSettings(
        broker_url=rabbitmq.url,
        result_backend=redis.results_url,
        queue_names=running.settings.queue_names,
        dead_letter_queue=running.settings.dead_letter_queue,
        journal=tmp_path / "there",
    )
    old_client = Celery("old", set_as_current=False)
    old_client.conf.update(celery_config(running.settings.replace(broker_read_url=None, broker_write_url=None)))
    task = str(uuid4())
    old_client.send_task("repot.retry", (1,), task_id=task)
    running.await_line(ENDED, task)
    assert [line["state"] for line in running.lines(ENDED, task)] == ["RETRY"]
    with start_worker(f"there-{uuid4()}", there.queue_names[0], there, tmp_path) as worker:
        new = RunningWorker(there, worker)
        new.await_line(ENDED, task)
        assert [line["state"] for line in new.lines(ENDED, task)] == ["SUCCESS"]


def test_a_failover_list_reaches_the_server_that_lives(
    server: Server, redis: Server, start: Callable[..., RunningWorker]
) -> None:
    dead = server.url_at(1)
    running = start(f"{dead};{server.url}", redis.results_url)
    running.await_line(ENDED, running.send("repot.run", 0))
