"""Dead letters in real workers, on both brokers, and the commands of `repot dlq`."""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from time import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from amqp import ChannelError
from celery import Celery
from click.testing import CliRunner
from kombu import Connection, Exchange, Producer, Queue
from redis import Redis

from repot.brokers.browse import Keep
from repot.brokers.message import Message, publish
from repot.chaos.runner.proxies import Proxy
from repot.chaos.runner.worker_process import READY_WITHIN_S
from repot.chaos.runner.workers import start_worker
from repot.cli.main import main
from repot.cli.output import PIPE_CLOSED
from repot.config import ExplicitSettings, Role, celery_config, child_environment
from repot.config.queues import DeadLetterQueue
from repot.database.connection import Database
from repot.database.migrate import Migrations
from repot.deadletter import dead_letter
from repot.deadletter.dead_letter import DeadLetter, Death
from repot.deadletter.dead_letter_events import dead_lettered
from repot.deadletter.publisher import DeadLetterPublisher, PendingDeadLetter
from repot.deadletter.reason import Reason
from repot.errors import BrokerUnreachable, DeadlineExceeded, DepthUnknown
from repot.waiting import wait_until
from support import forked
from support.dead_routes_app import SEVERAL, TOPIC
from support.rabbitmqctl import disk_alarm
from support.servers import DISTINCT, servers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from click.testing import Result

    from repot.brokers.browse import Decision
    from repot.testbed import ReapedProcess, Server
    from support.databases import PrivateDatabase

PLANTED = "hunter2-s3cret"


class FailingApp:
    """One queue on one broker, `dead_app` behind it, and its dead letters."""

    def __init__(self, server: Server, store: Server | PrivateDatabase, directory: Path, **changes: Any) -> None:
        self.directory, self.server = directory, server
        self.queue = changes.get("queue_names", (f"q-{uuid4()}",))[0]
        defaults: dict[str, Any] = {
            "app": "support.dead_app",
            "broker_url": server.url,
            "management_url": server.management_url,
            "result_backend": store.results_url,
            "queue_names": (self.queue,),
            "status_dir": directory / "status",
        }
        self.settings = ExplicitSettings(**{**defaults, **changes})
        self.dead = self.settings.dead_letters_of(self.queue)
        self.client = Celery("test", set_as_current=False)
        self.client.conf.update(celery_config(self.settings, Role.CLIENT))
        self.broker = server.open()
        self.workers: list[ReapedProcess] = []

    def start(self, *options: str, processes: int = 2) -> ReapedProcess:
        name = f"w-{uuid4()}"
        worker = start_worker(name, self.queue, self.settings, self.directory, processes, options)
        self.workers.append(worker)
        # one that is killed by its first message may have ended
        wait_until(
            lambda: " ready." in worker.log_tail(500) or worker.exit_code is not None,
            within_s=READY_WITHIN_S,
            what="it consumes",
        )
        return worker

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()
        self.client.close()
        self.broker.close()

    def declare_dead(self) -> None:
        """Declare the dead-letter queue before a worker that leaves does: that may take RabbitMQ seconds."""
        with self.channel() as channel:
            DeadLetterQueue(self.dead, "quorum")(channel).declare()

    def send(self, name: str, *arguments: Any, **options: Any) -> str:
        return str(self.client.send_task(name, arguments, **options).id)

    def raw(self, message: Message, queue: str = "") -> None:
        """Put a message into the queue as it is."""
        with self.channel() as channel:
            publish(channel, message, queue or self.queue)

    @contextmanager
    def channel(self) -> Iterator[Any]:
        with Connection(self.server.url, transport_options={"confirm_publish": True}) as connection:
            yield connection.default_channel

    def dead_letters(self, queue: str = "") -> list[DeadLetter]:
        found: list[DeadLetter] = []

        def see(message: Message) -> Decision:
            found.append(dead_letter.read_dead_letter(message, queue or self.dead))
            return Keep()

        self.broker.browse(queue or self.dead, see)
        return found

    def find_dead_letter(self, task: str) -> DeadLetter:
        """Return the dead letter of a task, once it is there."""

        def look() -> list[DeadLetter]:
            for worker in self.workers:
                assert worker.exit_code is None, worker.log_tail(40)
            try:
                return [one for one in self.dead_letters() if one.id == task]
            except BrokerUnreachable:
                # RabbitMQ answers 541, noproc, for a queue that is declared and whose process has not begun yet
                return []

        return wait_until(look, within_s=30, what=f"the dead letter of {task}", poll_s=0.1)[0]

    def await_ok(self) -> None:
        """Whatever was sent before has been taken by one process."""
        done = self.directory / f"ok-{uuid4()}"
        self.send("dead.ok", str(done))
        wait_until(done.exists, within_s=30, what="a task runs")

    def await_settled(self) -> None:
        """Nothing waits, nothing is in a worker's hands; the counts may be some seconds old."""
        wait_until(self._is_drained, within_s=20, what="every message is settled", poll_s=0.2)

    def _is_drained(self) -> bool:
        try:
            return self.broker.depth(self.queue).is_drained
        except DepthUnknown:
            return False

    def run(self, *words: str, code: int = 0) -> Result:
        """`repot dlq ...`, in this process, which takes a fifth of the time of one of its own."""
        # nor is the application imported, which is asked for its keys on Redis alone
        environment = {name: value for name, value in self.environment.items() if name != "WORKER_APP"}
        # other tests have queues on the same broker
        own = () if {"--queue", "--dead-queue"} & {*words} else ("--queue", self.queue)
        done = CliRunner(env=environment).invoke(main, ["dlq", *words, *own])
        assert code == done.exit_code, done.output
        return done

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "repot", "dlq", *words]

    @property
    def environment(self) -> dict[str, str]:
        return child_environment(self.settings)


@pytest.fixture(scope="module", params=DISTINCT, ids="-".join)
def failing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FailingApp]:
    """A worker that all tests of this module share and none harms."""
    found = FailingApp(*servers_of(request), tmp_path_factory.mktemp("failing"), redact=("card",))
    found.start()
    found.await_ok()
    yield found
    found.stop()


@pytest.fixture
def opened(redis: Server, tmp_path: Path) -> Iterator[Callable[..., FailingApp]]:
    """An application of the test's own, whose worker, if there is one, may be harmed."""
    posts: list[FailingApp] = []

    def begin(server: Server, **changes: Any) -> FailingApp:
        posts.append(FailingApp(server, redis, tmp_path, **changes))
        return posts[-1]

    yield begin
    for one in posts:
        one.stop()


# What becomes a dead letter


@pytest.mark.promise("redis-redis", "rabbitmq-postgresql")
@pytest.mark.parametrize(
    ("task", "options", "expected"),
    [
        ("dead.fail", {}, (Reason.FAILED, "RuntimeError", "on purpose", 1)),
        ("dead.fail", {"countdown": 1}, (Reason.FAILED, "RuntimeError", "on purpose", 1)),
        ("dead.retry", {}, (Reason.RETRIES_EXHAUSTED, "RuntimeError", "again", 3)),
        ("dead.permanent", {}, (Reason.PERMANENT, "ValueError", "never", 1)),
        (
            "dead.permanent",
            {"kwargs": {"wrapped": True}},
            (Reason.PERMANENT, "support.dead_app.Unpicklable", "", 1),
        ),
        ("dead.unknown", {}, (Reason.UNKNOWN_OUTCOME, "repot.errors.OutcomeUnknown", "it may have happened", 1)),
        ("dead.expired", {"kwargs": {"own": True}}, (Reason.FAILED, "repot.errors.ResultExpired", "not kept", 1)),
        ("dead.unencodable", {}, (Reason.RESULT_NOT_STORED, "kombu.exceptions.EncodeError", "not JSON", 1)),
        ("dead.unstored", {}, (Reason.RESULT_NOT_STORED, "ConnectionError", "the result store is away", 1)),
        ("dead.odd", {}, (Reason.FAILED, "RuntimeError", "", 1)),
        ("dead.memory", {}, (Reason.FAILED, "MemoryError", "Unable to allocate 1 PiB", 1)),
        ("dead.hang", {}, (Reason.TIME_LIMIT, "billiard.exceptions.TimeLimitExceeded", "(1,)", 1)),
        ("dead.die", {}, (Reason.WORKER_LOST, "billiard.exceptions.WorkerLostError", "signal 9 (SIGKILL)", 1)),
        ("dead.reject", {}, (Reason.REJECTED, "celery.exceptions.Reject", "not mine", 1)),
        ("dead.early", {}, (Reason.FAILED, "RuntimeError", "too late", 1)),
        ("dead.unregistered", {}, (Reason.UNKNOWN_TASK, "KeyError", "dead.unregistered", None)),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value) if isinstance(value, dict) else "",
)
def test_a_task_that_is_dead_leaves_one_dead_letter(
    failing: FailingApp, task: str, options: dict[str, Any], expected: tuple[str, str, str, int | None]
) -> None:
    found = failing.find_dead_letter(failing.send(task, **options))
    reason, exception, text, attempts = expected
    assert (reason, exception, attempts) == (found.death.reason, found.death.exception, found.death.attempts)
    assert text in found.death.message
    assert (task, failing.queue) == (found.task, found.death.queue)
    assert found.death.worker.startswith("celery@w-")
    assert found.death.died_at is not None
    failing.await_ok()
    assert sum(one.id == found.id for one in failing.dead_letters()) == 1


@pytest.mark.promise("redis-redis", "rabbitmq-postgresql")
@pytest.mark.parametrize("task", ["dead.throws", "dead.ignored", "dead.left_out", "dead.ok", "dead.expired"])
def test_what_is_expected_is_no_dead_letter(failing: FailingApp, task: str) -> None:
    """`throws`, `Ignore`, `dead_letter = False`, success, and what another message did already."""
    sent = failing.send(task, **({"kwargs": {"own": False}} if task == "dead.expired" else {}))
    # a later one has its dead letter
    failing.find_dead_letter(failing.send("dead.fail"))
    assert sent not in {one.id for one in failing.dead_letters()}


BODY = b"[[], {}, {}]"


@pytest.mark.parametrize(
    ("body", "content_type", "headers", "reason"),
    [
        (b"\xff\x00 no text", "application/json", {"task": "dead.ok"}, Reason.UNDECODABLE),
        (b"[[], {", "application/json", {"task": "dead.ok"}, Reason.UNDECODABLE),
        (BODY, "application/x-never-heard-of", {"task": "dead.ok"}, Reason.UNDECODABLE),
        (
            b"\xff",
            "application/json",
            {"compression": "application/x-gzip", "task": "dead.ok"},
            Reason.UNDECODABLE,
        ),
        (b"{}", "application/json", {}, Reason.NOT_A_TASK),
        (b"5", "application/json", {"task": "dead.ok"}, Reason.NOT_A_TASK),
        (b"[1]", "application/json", {"task": "dead.ok"}, Reason.NOT_A_TASK),
        (b"[[], 1, {}]", "application/json", {"task": "dead.ok"}, Reason.NOT_A_TASK),
        (BODY, "application/json", {"task": "dead.ok", "id": 5}, Reason.NOT_A_TASK),
        (BODY, "application/json", {"task": "dead.ok", "eta": "soon"}, Reason.NOT_A_TASK),
    ],
)
def test_a_message_that_cannot_run_goes_whole(
    failing: FailingApp, body: bytes, content_type: str, headers: dict[str, Any], reason: str
) -> None:
    """Celery acknowledges or drops these, and some end the worker, and then the next one."""
    mark = str(uuid4())
    headers = {"id": mark, "mark": mark, **headers}
    sent = Message(
        body, content_type, "utf-8", headers, {"priority": 0, "correlation_id": mark, "expiration": "600000"}
    )
    failing.raw(sent)

    def arrived() -> list[DeadLetter]:
        return [one for one in failing.dead_letters() if one.message.headers.get("mark") == mark]

    found = wait_until(arrived, within_s=20, what="the dead letter")[0]
    assert (reason, failing.queue, "600000") == (found.death.reason, found.death.queue, found.death.ttl_ms)
    without = {name: value for name, value in found.message.headers.items() if name != dead_letter.HEADER}
    assert (body, content_type, "utf-8", headers) == (
        found.message.body,
        found.message.content_type,
        found.message.content_encoding,
        without,
    )
    assert {"priority": 0, "correlation_id": mark, "delivery_mode": 2} == found.message.properties
    failing.await_ok()


@pytest.mark.parametrize("protocol", [1, 2])
@pytest.mark.parametrize("depth", [480, 900])
def test_arguments_nested_too_deeply_go_whole_and_their_caller_gets_the_error(
    failing: FailingApp, protocol: int, depth: int
) -> None:
    """Celery's worker ends when it passes them to its pool, and then the next worker."""
    task, nested = str(uuid4()), "[" * depth + "]" * depth
    if protocol == 1:
        body, headers = f'{{"task": "dead.ok", "id": "{task}", "args": [{nested}], "kwargs": {{}}}}', {}
    else:
        body, headers = f"[[{nested}], {{}}, {{}}]", {"task": "dead.ok", "id": task}
    sent = Message(body.encode(), "application/json", "utf-8", headers, {"priority": 0, "correlation_id": task})
    failing.raw(sent)
    assert failing.find_dead_letter(task).death.reason == Reason.UNDECODABLE
    wait_until(lambda: failing.client.backend.get_state(task) == "FAILURE", within_s=30, what="the caller hears of it")
    failing.await_ok()


def _lose_links(server: Server, link: Proxy) -> None:
    """Reset a worker's connections, and let it give its messages back at once."""
    if server.url.startswith("redis"):
        Redis.from_url(server.url).client_kill_filter(_type="normal")
    else:
        # what RabbitMQ has delivered is its own again with the end of the connection
        with link.closed():
            pass


def _has_left(worker: ReapedProcess) -> bool:
    return worker.exit_code is not None


#: Redis hands out again what a dead worker had, within seconds.
SOON: dict[str, Any] = {"max_deliveries": 1, "visibility_timeout": 2, "restore_interval": 1}


@pytest.mark.promise("dead.kills")
@pytest.mark.parametrize("task", ["dead.never_starts", "dead.kills"])
def test_what_kills_its_worker_is_dead_the_next_time(
    server: Server, opened: Callable[..., FailingApp], task: str
) -> None:
    """Before its task starts, or with all processes while it runs; on either broker."""
    failing = opened(server, **SOON)
    sent = failing.send(task)
    worker = failing.start(processes=1)
    wait_until(partial(_has_left, worker), within_s=30, what="it kills its worker")
    failing.workers.remove(worker)
    worker.stop()
    failing.start(processes=1)
    found = failing.find_dead_letter(sent)
    assert (
        found.death.reason,
        found.death.exception,
    ) == (Reason.DELIVERY_LIMIT, "repot.errors.DeliveryLimitReached")
    wait_until(lambda: failing.client.backend.get_state(sent) == "FAILURE", within_s=30, what="the caller hears of it")
    failing.await_ok()
    failing.await_settled()


def test_what_kills_its_worker_is_dead_without_any_redis(
    rabbitmq: Server, postgresql: PrivateDatabase, opened: Callable[..., FailingApp]
) -> None:
    """A classic queue, whose deliveries RabbitMQ does not count; counts and results are in a database."""
    with closing(Database(ExplicitSettings(lease_store=postgresql.url))) as database:
        Migrations(database).apply()
    without = {"lease_store": postgresql.url, "result_backend": f"db+{postgresql.url}", "queue_type": "classic"}
    failing = opened(rabbitmq, **SOON | without | {"max_deliveries": 2})
    sent = failing.send("dead.kills")
    for _ in range(2):
        worker = failing.start(processes=1)
        wait_until(partial(_has_left, worker), within_s=30, what="it kills its worker")
        failing.workers.remove(worker)
        worker.stop()
    failing.start(processes=1)
    assert failing.find_dead_letter(sent).death.reason == Reason.DELIVERY_LIMIT
    wait_until(lambda: failing.client.backend.get_state(sent) == "FAILURE", within_s=30, what="the caller hears of it")
    failing.await_settled()


def _has_begun(begun: Path, times: int) -> bool:
    return begun.exists() and len(begun.read_text().split()) >= times


def _take_and_leave(failing: FailingApp, begun: Path, times: int, by: signal.Signals) -> None:
    """Start a worker, and end it when it has the message."""
    worker = failing.start(processes=1)
    wait_until(partial(_has_begun, begun, times), within_s=30, what="it has the message")
    worker.signal(by)
    wait_until(partial(_has_left, worker), within_s=30, what="it leaves")
    failing.workers.remove(worker)
    worker.stop()


def test_workers_that_leave_do_not_count(server: Server, opened: Callable[..., FailingApp], tmp_path: Path) -> None:
    """A message requeued twice, with a limit of one delivery, is not a dead letter."""
    begun = tmp_path / "begun"
    failing = opened(server, **SOON | {"visibility_timeout": 60, "soft_shutdown_timeout": 0})
    sent = failing.send("dead.runs_long", str(begun))
    for number in (1, 2):
        _take_and_leave(failing, begun, number, signal.SIGQUIT)
    failing.start(processes=1)
    wait_until(partial(_has_begun, begun, 3), within_s=30, what="it runs again")
    assert sent not in {one.id for one in failing.dead_letters()}


def test_what_a_task_keeps_in_its_worker_does_not_count(
    server: Server, opened: Callable[..., FailingApp], tmp_path: Path
) -> None:
    """Batches that were not full when workers were stopped became dead letters, and never ran."""
    here = tmp_path / "here"
    failing = opened(server, **SOON | {"visibility_timeout": 60})
    sent = failing.send("dead.kept", str(here))
    for number in (1, 2):
        _take_and_leave(failing, here, number, signal.SIGTERM)
    failing.start(processes=1)
    wait_until(partial(_has_begun, here, 3), within_s=30, what="it is kept again")
    assert sent not in {one.id for one in failing.dead_letters()}


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_a_task_requeues_does_not_count(
    server: Server, opened: Callable[..., FailingApp], tmp_path: Path, pool: str
) -> None:
    """A message that is given back three times, with a limit of one delivery, runs a fourth time."""
    failing = opened(server, **SOON | {"visibility_timeout": 60})
    failing.start("--pool", pool)
    sent = failing.send("dead.requeues", str(tmp_path / "begun"), 3)
    wait_until(
        lambda: failing.client.backend.get_state(sent) in ("SUCCESS", "FAILURE"), within_s=30, what="its task ends"
    )
    assert (failing.client.backend.get_state(sent), failing.dead_letters()) == ("SUCCESS", [])


def test_what_goes_back_because_its_process_died_counts(server: Server, opened: Callable[..., FailingApp]) -> None:
    failing = opened(server, **SOON | {"visibility_timeout": 60})
    failing.start()
    assert failing.find_dead_letter(failing.send("dead.dies_again")).death.reason == Reason.DELIVERY_LIMIT


def test_workers_that_lose_their_link_do_not_count(
    server: Server, toxiproxy: Server, opened: Callable[..., FailingApp], tmp_path: Path
) -> None:
    """The same, for a worker that gives back what it runs: on Redis, one that does not claim."""
    link = Proxy.create(toxiproxy.url, f"link-{uuid4()}", server.port)
    begun = tmp_path / "begun"
    failing = opened(server, **SOON | {"visibility_timeout": 60, "redis_claim": "brpop", "socket_timeout": 2})
    through = failing.settings.replace(broker_url=server.url_at(link.port))
    sent = failing.send("dead.runs_long", str(begun))
    try:
        # each run goes on in its process, so that the next needs another
        failing.workers.append(start_worker(f"w-{uuid4()}", failing.queue, through, failing.directory, 4))
        for number in (1, 2, 3):
            wait_until(partial(_has_begun, begun, number), within_s=30, what="it runs")
            _lose_links(server, link)
        wait_until(partial(_has_begun, begun, 4), within_s=30, what="it runs again")
        assert sent not in {one.id for one in failing.dead_letters()}
    finally:
        link.delete()


def test_a_compressed_task_stays_compressed(failing: FailingApp) -> None:
    sent = failing.send("dead.fail", "x" * 500, compression="gzip")
    found = failing.find_dead_letter(sent)
    assert found.message.headers["compression"] == "application/x-gzip"
    assert len(found.message.body) < 200
    failing.run("replay", sent, "--execute")
    wait_until(
        lambda: [one for one in failing.dead_letters() if (one.id, one.death.replays) == (sent, 1)],
        within_s=20,
        what="it was run again, and failed again",
    )


def test_dead_letters_leave_nothing_behind_in_the_queue(failing: FailingApp) -> None:
    """Every message is acknowledged once its dead letter is confirmed."""
    for name in ("dead.fail", "dead.reject", "dead.early", "dead.unregistered"):
        failing.find_dead_letter(failing.send(name))
    failing.await_settled()


@pytest.mark.parametrize(
    ("server", "pool"), [("redis", "threads"), ("rabbitmq", "solo"), ("rabbitmq", "gevent")], indirect=["server"]
)
def test_other_pools(server: Server, opened: Callable[..., FailingApp], pool: str) -> None:
    failing = opened(server)
    failing.start("--pool", pool)
    found = [
        failing.find_dead_letter(failing.send(name)).death.reason for name in ("dead.fail", "dead.reject", "dead.retry")
    ]
    assert found == [Reason.FAILED, Reason.REJECTED, Reason.RETRIES_EXHAUSTED]
    failing.await_settled()


def test_what_rabbitmq_put_aside_itself(rabbitmq: Server, opened: Callable[..., FailingApp]) -> None:
    """A message that was delivered too often, and one that was rejected."""
    failing = opened(rabbitmq)
    with failing.channel() as channel:
        DeadLetterQueue(failing.dead, "quorum")(channel).declare()
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": failing.dead, "x-queue-type": "quorum"}
        work = Queue(failing.queue, queue_arguments={**arguments, "x-delivery-limit": 1})(channel)
        work.declare()
        for number, (mark, requeue) in enumerate((("poison", True), ("no", False)), 1):
            publish(channel, Message(BODY, "application/json", "utf-8", {"task": "t", "id": mark}), failing.queue)

            def dies(requeue: bool = requeue, number: int = number) -> bool:
                message: Any = work.get()
                if message is not None:
                    message.reject(requeue=requeue)
                return len(failing.dead_letters()) == number

            wait_until(dies, within_s=30, what=f"{mark} is dead")
    reasons = {one.id: one.death.reason for one in failing.dead_letters()}
    assert reasons == {"poison": Reason.DELIVERY_LIMIT, "no": Reason.REJECTED}
    assert {failing.queue} == {one.death.queue for one in failing.dead_letters()}
    failing.run("replay", "--to", failing.queue, "--execute")
    assert failing.dead_letters() == []
    assert [one.message.headers.get("x-death") for one in failing.dead_letters(failing.queue)] == [None, None]


@pytest.mark.parametrize(
    ("queue", "exchange", "key"), [("dead-listed", SEVERAL, "a"), ("dead-media", TOPIC, "media.x")]
)
def test_a_queue_that_is_not_called_like_the_routing_key(
    server: Server, opened: Callable[..., FailingApp], queue: str, exchange: Exchange, key: str
) -> None:
    """Several bindings, or a topic: dead letters and replays go by the queue, not by the routing key."""
    failing = opened(server, app="support.dead_routes_app", queue_names=(queue,))
    worker = failing.start(processes=1)
    wait_until(lambda: " ready." in worker.log_tail(100), within_s=READY_WITHIN_S, what="it consumes")
    sent = [_send_through(failing, exchange, key, "dead.fail") for _ in range(4)]
    assert {queue} == {failing.find_dead_letter(one).death.queue for one in sent}
    failing.await_settled()
    failing.run("replay", "--execute")
    wait_until(
        lambda: [one.death.replays for one in failing.dead_letters()] == [1] * 4, within_s=20, what="all ran again"
    )


def test_a_task_that_fails_while_its_worker_of_a_topic_leaves(
    server: Server, opened: Callable[..., FailingApp], tmp_path: Path
) -> None:
    """Its consumer is gone by then, and with it whatever it could say of the queue."""
    failing, go = opened(server, app="support.dead_routes_app", queue_names=("dead-media",)), tmp_path / "go"
    failing.declare_dead()
    worker = failing.start(processes=1)
    wait_until(lambda: " ready." in worker.log_tail(100), within_s=READY_WITHIN_S, what="it consumes")
    sent = _send_through(failing, TOPIC, "media.y", "dead.held", str(go))
    wait_until((tmp_path / "go-runs").exists, within_s=30, what="it runs")
    worker.signal(signal.SIGTERM)
    wait_until(lambda: "Warm shutdown" in worker.log_tail(100), within_s=30, what="the worker leaves")
    go.touch()
    try:
        wait_until(lambda: worker.exit_code is not None, within_s=20, what="the worker is gone")
    except DeadlineExceeded as error:
        # Celery writes the stack of each thread to its log
        worker.signal(signal.SIGUSR1)
        wait_until(
            lambda: "LOCAL VARIABLES" in worker.log_tail(1000) or worker.exit_code is not None,
            within_s=20,
            what="its log has them",
        )
        raise AssertionError(worker.log_tail(1000)) from error
    worker.stop()
    failing.workers.clear()
    assert failing.find_dead_letter(sent).death.queue == "dead-media"


# What happens when the dead letter cannot be published


@pytest.mark.xdist_group("harmed rabbitmq")
def test_a_broker_alarm_does_not_stop_the_loop(
    harmed_rabbitmq: Server, opened: Callable[..., FailingApp], tmp_path: Path
) -> None:
    """RabbitMQ confirms nothing then: the dead letter waits, other tasks run, and it is written once in the end."""
    failing = opened(harmed_rabbitmq, heartbeat=4)
    failing.start()
    go, done = tmp_path / "go", tmp_path / "done"
    failing.await_ok()
    sent = failing.send("dead.held", str(go))
    for _ in range(20):
        failing.send("dead.ok", str(done))
    with disk_alarm(harmed_rabbitmq):
        go.touch()
        wait_until(lambda: done.exists() and len(done.read_text().split()) == 20, within_s=20, what="the others ran")
        # longer than two heartbeats, after which a connection would be given up
        with suppress(DeadlineExceeded):
            wait_until(failing.dead_letters, within_s=10, what="a dead letter, which there must not be")
        assert failing.dead_letters() == []
    assert failing.find_dead_letter(sent).death.reason == Reason.FAILED
    failing.await_settled()
    assert [sent] == [one.id for one in failing.dead_letters()]


@pytest.mark.promise
@pytest.mark.xdist_group("harmed rabbitmq")
def test_a_dead_letter_is_safe_when_the_broker_has_confirmed_it_and_not_before(
    harmed_rabbitmq: Server, opened: Callable[..., FailingApp], tmp_path: Path
) -> None:
    """With any WORKER_PUBLISHER_CONFIRMS: an unconfirmed dead letter whose message is acknowledged can be lost."""
    failing = opened(harmed_rabbitmq, publisher_confirms=False)
    worker = failing.start()
    go = tmp_path / "go"
    failing.await_ok()
    sent = failing.send("dead.held", str(go))
    with disk_alarm(harmed_rabbitmq):
        go.touch()
        wait_until(lambda: "raised unexpected" in worker.log_tail(200), within_s=20, what="the task fails")
        with suppress(DeadlineExceeded):
            wait_until(lambda: "is a dead letter" in worker.log_tail(200), within_s=3, what="what must not be said")
        assert "is a dead letter" not in worker.log_tail(200)
    assert failing.find_dead_letter(sent).death.reason == Reason.FAILED
    failing.await_settled()


def test_a_dead_letter_that_is_refused_gives_its_message_back(
    server: Server, opened: Callable[..., FailingApp], tmp_path: Path
) -> None:
    """The dead-letter queue refuses messages; once it accepts them, the task has run again and is dead-lettered."""
    failing = opened(server)
    with failing.channel() as channel, _refusing(failing, channel):
        failing.start()
        sent = failing.send("dead.repaired", str(tmp_path / "never"))
        log = failing.workers[0]
        wait_until(lambda: "next attempt" in log.log_tail(200), within_s=60, what="it is refused")
        wait_until(lambda: "is requeued" in log.log_tail(200), within_s=40, what="it is requeued")
    assert failing.find_dead_letter(sent).death.reason == Reason.FAILED
    failing.await_settled()


def test_a_worker_that_leaves_with_a_dead_letter_in_its_hand(server: Server, opened: Callable[..., FailingApp]) -> None:
    """It is not written, so the message is not acknowledged: the next worker has it."""
    failing = opened(server)
    with failing.channel() as channel, _refusing(failing, channel):
        first = failing.start()
        sent = failing.send("dead.fail")
        wait_until(lambda: "next attempt" in first.log_tail(200), within_s=20, what="it is refused")
        first.signal(signal.SIGTERM)
        wait_until(lambda: first.exit_code is not None, within_s=30, what="the worker leaves")
        assert first.exit_code == 0
    first.stop()
    failing.workers.clear()
    failing.start()
    assert failing.find_dead_letter(sent).death.reason == Reason.FAILED
    failing.await_settled()


def test_a_signal_is_sent_for_each_confirmed_dead_letter(server: Server, opened: Callable[..., FailingApp]) -> None:
    """The signal that metrics count by."""
    failing = opened(server)
    heard: list[tuple[str, ...]] = []
    settled: list[bool] = []

    def hear(sender: str, **said: Any) -> None:
        heard.append((sender, said["reason"], said["queue"], said["task_id"]))

    publisher = DeadLetterPublisher(failing.client, failing.settings)
    dead_lettered.connect(hear, dispatch_uid=failing.queue)
    try:
        for name in ("one", "two"):
            written = dead_letter.make_dead_letter(_message(name), Death(Reason.FAILED, failing.queue))
            publisher.publish_later(
                PendingDeadLetter(written, failing.dead, settled.append, "dead.ok", name, Reason.FAILED, failing.queue)
            )
        wait_until(lambda: not publisher.pending, within_s=30, what="both are written")
    finally:
        dead_lettered.disconnect(hear, dispatch_uid=failing.queue)
        publisher.close()
    assert [("dead.ok", Reason.FAILED, failing.queue, name) for name in ("one", "two")] == heard
    assert settled == [True, True]
    assert [one.id for one in failing.dead_letters()] == ["one", "two"]


def test_a_dead_letter_that_cannot_be_written_stops_no_other(
    rabbitmq: Server, opened: Callable[..., FailingApp]
) -> None:
    """A header from Redis that AMQP has no form for: refused for its time, and the next one is written."""
    failing = opened(rabbitmq)
    settled: list[tuple[str, bool]] = []
    publisher = DeadLetterPublisher(failing.client, failing.settings)
    for name, headers in (("odd", {"big": 2**80}), ("good", {})):
        written = dead_letter.make_dead_letter(_message(name, headers), Death(Reason.FAILED, failing.queue))
        settle = partial(_note, settled, name)
        publisher.publish_later(
            PendingDeadLetter(written, failing.dead, settle, "dead.ok", name, Reason.FAILED, failing.queue)
        )
    wait_until(lambda: not publisher.pending, within_s=40, what="both are settled")
    publisher.close()
    assert settled == [("odd", False), ("good", True)]
    assert [one.id for one in failing.dead_letters()] == ["good"]


def test_a_task_that_fails_while_its_worker_leaves(
    server: Server, opened: Callable[..., FailingApp], tmp_path: Path
) -> None:
    """A warm shutdown waits for the task, and then for its dead letter; nothing is delivered again."""
    failing, go = opened(server), tmp_path / "go"
    failing.declare_dead()
    worker = failing.start()
    failing.await_ok()
    sent = failing.send("dead.held", str(go))
    wait_until((tmp_path / "go-runs").exists, within_s=30, what="it runs")
    worker.signal(signal.SIGTERM)
    wait_until(lambda: "Warm shutdown" in worker.log_tail(100), within_s=30, what="the worker leaves")
    go.touch()
    wait_until(lambda: worker.exit_code is not None, within_s=20, what="the worker is gone")
    assert worker.exit_code == 0
    worker.stop()
    failing.workers.clear()
    assert [sent] == [one.id for one in failing.dead_letters()]
    assert failing.dead_letters(failing.queue) == []


# Commands on dead letters


@pytest.mark.promise("redis-redis", "rabbitmq-postgresql")
def test_thirty_looks_do_not_consume(failing: FailingApp) -> None:
    sent = failing.send("dead.fail")
    failing.find_dead_letter(sent)
    for _ in range(30):
        assert any(one.id == sent for one in failing.dead_letters())
    assert any(one["id"] == sent for one in json.loads(failing.run("list", "--json").stdout))


@pytest.mark.promise("redis-redis", "rabbitmq-postgresql")
def test_replay_keeps_the_id_and_says_that_it_is_one(failing: FailingApp, tmp_path: Path) -> None:
    """The task sees `repot_replay` in its headers, and its retries from the beginning."""
    path = tmp_path / "repaired"
    sent = failing.send("dead.repaired", str(path))
    failing.find_dead_letter(sent)
    failing.run("replay", sent, "--execute")
    wait_until(
        lambda: [one for one in failing.dead_letters() if (one.id, one.death.replays) == (sent, 1)],
        within_s=20,
        what="again",
    )
    path.touch()
    asked_at = int(time() * 1000)
    dry = failing.run("replay", sent)
    assert sent in dry.stdout
    assert "nothing was changed" in dry.stderr
    assert any(one.id == sent for one in failing.dead_letters())
    failing.run("replay", sent[:13], "--execute")
    task, replay, retries = wait_until(path.read_text, within_s=20, what="the task runs").split()
    assert (sent, "0") == (task, retries)
    assert asked_at <= int(replay) <= int(time() * 1000)
    wait_until(lambda: failing.client.backend.get_state(sent) == "SUCCESS", within_s=30, what="it succeeds")
    assert sent not in {one.id for one in failing.dead_letters()}


def test_replay_refuses_what_would_vanish(server: Server, opened: Callable[..., FailingApp]) -> None:
    """An expired task, and a message that no worker could read, unless it is selected."""
    failing = opened(server)
    expired = _dead_letter("expired", failing.queue, headers={"expires": "2020-01-01T00:00:00+00:00"})
    garbage = _dead_letter("garbage", failing.queue, reason=Reason.UNDECODABLE)
    with failing.channel() as channel:
        for name in (failing.queue, failing.dead):
            Queue(name)(channel).declare()
    for one in (expired, garbage):
        failing.raw(one, failing.dead)
    refused = failing.run("replay", "--execute")
    assert "0 replayed" in refused.stderr
    assert "1 skipped: the task has expired" in refused.stderr
    assert len(failing.dead_letters()) == 2
    failing.run("replay", "--forget-expiry", "--execute")
    assert [one.id for one in failing.dead_letters()] == ["garbage"]
    failing.run("replay", "--reason", "undecodable", "--execute")
    assert failing.dead_letters() == []
    back = {one.id: one.message for one in failing.dead_letters(failing.queue)}
    assert {"expired", "garbage"} == back.keys()
    assert back["expired"].headers["expires"] is None
    assert (back["garbage"].body, back["garbage"].headers[dead_letter.REPLAYS_HEADER]) == (BODY, 1)


def test_discard_takes_a_filter(server: Server, opened: Callable[..., FailingApp]) -> None:
    failing = opened(server)
    with failing.channel() as channel:
        Queue(failing.dead)(channel).declare()
    for name in ("one", "two", "three"):
        failing.raw(_dead_letter(name, failing.queue, headers={"task": f"task.{name}"}), failing.dead)
    failing.run("discard", "--execute", code=2)
    failing.run("discard", "--id", "", "--execute", code=2)
    failing.run("discard", "--all")
    assert len(failing.dead_letters()) == 3
    # their age is unknown
    failing.run("discard", "--task", "task.one", "--older-than", "1h", "--execute")
    assert len(failing.dead_letters()) == 3
    failing.run("discard", "--task", "task.one", "--execute")
    failing.run("discard", "two", "--execute")
    assert [one.id for one in failing.dead_letters()] == ["three"]
    counted = json.loads(failing.run("stats", "--json").stdout)
    assert [(one["reason"], one["task"], one["count"]) for one in counted] == [("failed", "task.three", 1)]
    failing.run("show", "one", code=1)
    failing.run("discard", "--all", "--execute")
    assert failing.dead_letters() == []


def test_an_id_of_the_applications_own_selects_no_other(server: Server, opened: Callable[..., FailingApp]) -> None:
    """`order-1` is the beginning of `order-10` and `order-17`."""
    failing = opened(server)
    with failing.channel() as channel:
        for name in (failing.queue, failing.dead):
            Queue(name)(channel).declare()
    uuid = str(uuid4())
    for name in ("order-1", "order-10", "order-17", uuid):
        failing.raw(_dead_letter(name, failing.queue), failing.dead)
    assert [one["id"] for one in json.loads(failing.run("list", "--id", "order-1", "--json").stdout)] == ["order-1"]
    assert [one["id"] for one in json.loads(failing.run("show", "order-1", "--json").stdout)] == ["order-1"]
    failing.run("replay", "order-1", "--execute")
    assert [one.id for one in failing.dead_letters(failing.queue)] == ["order-1"]
    failing.run("discard", "order-1", "--execute")
    assert {one.id for one in failing.dead_letters()} == {"order-10", "order-17", uuid}
    failing.run("discard", "order", uuid[:8], "--execute")
    assert {one.id for one in failing.dead_letters()} == {"order-10", "order-17"}


def test_a_reader_that_leaves_is_no_error_and_no_broker_that_is_away(
    server: Server, opened: Callable[..., FailingApp]
) -> None:
    failing = opened(server)
    with failing.channel() as channel:
        DeadLetterQueue(failing.dead, "quorum")(channel).declare()
        for number in range(3):
            publish(channel, _dead_letter(f"one-{number}", failing.queue), failing.dead)
    for words in (["list"], ["replay"]):
        with forked.start(
            failing.command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=failing.environment
        ) as process:
            assert process.stdout
            process.stdout.close()
            assert process.stderr
            said = process.stderr.read()
        assert process.returncode == PIPE_CLOSED, said
        assert "error" not in said
    assert len(failing.dead_letters()) == 3


def test_what_the_broker_refuses_is_not_counted(server: Server, opened: Callable[..., FailingApp]) -> None:
    """The queue to replay into does not exist on RabbitMQ, or is a key of another type on Redis."""
    failing = opened(server)
    other = f"q-{uuid4()}"
    with failing.channel() as channel:
        for name in (failing.queue, failing.dead):
            Queue(name)(channel).declare()
        if server.name != "RabbitMQ":
            channel.client.set(other, "no list")
    for name, queue in (("one", failing.queue), ("two", other)):
        failing.raw(_dead_letter(name, queue), failing.dead)
    wait_until(lambda: len(failing.dead_letters()) == 2, within_s=30, what="they are there")
    for counted in ("1 replayed", "0 replayed"):
        assert counted in failing.run("replay", "--execute", code=1).stderr.splitlines()
        assert [one.id for one in failing.dead_letters()] == ["two"]
    if server.name != "RabbitMQ":
        # a queue behind it cannot be read
        queues = ("--dead-queue", failing.dead, "--dead-queue", other)
        assert "1 discarded" in failing.run("discard", "--all", *queues, "--execute", code=1).stderr.splitlines()
        assert failing.dead_letters() == []


@pytest.mark.promise
def test_a_broker_that_is_away_is_not_empty(server: Server, opened: Callable[..., FailingApp]) -> None:
    failing = opened(server, broker_url=server.url_at(1), management_url="http://127.0.0.1:1")
    for words in (("list",), ("stats",), ("replay", "--execute")):
        assert failing.run(*words, code=3).stdout == ""


@pytest.mark.promise("rabbitmq")
def test_a_replay_killed_half_way_loses_none(server: Server, opened: Callable[..., FailingApp]) -> None:
    """`repot dlq replay` under SIGKILL at random moments: every id is in the queue of work or of dead letters."""
    failing, number = opened(server), 400
    random = Random(20)  # noqa: S311 - the same moments each time
    with failing.channel() as channel:
        for name in (failing.queue, failing.dead):
            Queue(name)(channel).declare()
        for place in range(number):
            publish(channel, _dead_letter(f"{place}", failing.queue), failing.dead)
        sent_back = 0
        for _ in range(3):
            process = forked.start(
                failing.command("replay", "--execute", "--rate", "100"),
                env=failing.environment,
                stderr=subprocess.DEVNULL,
            )
            sent_back += random.randint(5, 55)
            wait_until(partial(_holds, channel, failing.queue, sent_back), within_s=30, what="half way")
            process.kill()
            process.wait()

    def all_ids() -> list[str]:
        found = [one.id for name in (failing.queue, failing.dead) for one in failing.dead_letters(name)]
        return found if len(found) >= number else []

    found = wait_until(all_ids, within_s=20, what="RabbitMQ has noticed the deaths")
    assert {f"{place}" for place in range(number)} == set(found)
    assert len(found) <= number + 3
    left = len(failing.dead_letters())
    assert 0 < left < number - 3


@pytest.mark.promise("redis-redis", "rabbitmq-postgresql")
def test_pickle_is_never_loaded(failing: FailingApp, tmp_path: Path) -> None:
    """Not by the worker, not by `repot dlq`: loading it would leave a file."""
    planted = tmp_path / "loaded"
    mark = str(uuid4())
    body = pickle.dumps(_Plant(str(planted)))
    failing.raw(Message(body, "application/x-python-serialize", "binary", {"task": "dead.ok", "id": mark}))
    assert failing.find_dead_letter(mark).death.reason == Reason.UNDECODABLE
    failing.run("list")
    shown = json.loads(failing.run("show", mark, "--payload", "--json").stdout)[0]
    assert {"hidden", "content_type", "bytes"} == shown["payload"].keys()
    failing.run("replay", mark)
    assert not planted.exists()
    pickle.loads(body)  # noqa: S301 - the plant is alive
    assert planted.exists()


@pytest.mark.promise("redis-redis", "rabbitmq-postgresql")
def test_what_is_to_be_hidden_is_shown_nowhere(failing: FailingApp) -> None:
    """WORKER_REDACT: as an argument, deep inside one, without a name, and in what the exception says."""
    sent = [
        failing.send("dead.fail", f"card {PLANTED}"),
        failing.send(
            "dead.fail", kwargs={"text": f"no: {PLANTED}", "card": PLANTED, "order": {"card": {"n": PLANTED}}}
        ),
        failing.send("dead.fail", kwargs={"password": PLANTED, "text": "x"}),
    ]
    shown = ""
    for one in sent:
        failing.find_dead_letter(one)
        for words in (("show", one), ("show", one, "--payload"), ("show", one, "--payload", "--json")):
            shown += failing.run(*words).stdout
    shown += failing.run("list").stdout + failing.run("list", "--json").stdout
    assert "**" in shown
    assert PLANTED not in shown


def test_an_unset_id_is_not_every_dead_letter(failing: FailingApp) -> None:
    sent = failing.send("dead.fail")
    failing.find_dead_letter(sent)
    for words in (
        ("replay", "", "--execute"),
        ("replay", sent, " ", "--execute"),
        ("discard", "", "--all"),
        ("show", ""),
    ):
        assert "empty" in failing.run(*words, code=2).stderr
    for option in ("--id", "--queue", "--dead-queue"):
        failing.run("replay", option, "", "--execute", code=2)
    assert sent in {one.id for one in failing.dead_letters()}


def test_what_other_programs_write_steers_no_terminal(server: Server, opened: Callable[..., FailingApp]) -> None:
    """Names, ids and texts with escape sequences, line breaks and halves of characters."""
    failing = opened(server)
    evil = "x\x1b]0;t\x07\x1b[2J\nforged  dead.ok  failed\r\u202e"
    id_ = f"id{evil}"
    with failing.channel() as channel:
        Queue(failing.dead)(channel).declare()
        death = Death(evil, evil, exception=f"E{evil}", message=f"{evil} \ud800", traceback=f"{evil}\nend \ud800")
        written = dead_letter.make_dead_letter(_message(id_, {"task": f"task{evil}", "\x1bname": evil}), death)
        publish(channel, written, failing.dead)
    for words in (("list",), ("show", id_), ("stats",), ("replay",), ("discard", "--all"), ("list", "--json")):
        shown = failing.run(*words)
        assert not {"\x1b", "\x07", "\r", "\u202e", "\ud800"} & set(shown.output)
        # the traceback keeps its line breaks
        forged = any(line.startswith("forged") for line in shown.stdout.splitlines())
        assert forged is ("show" in words)
    assert len(failing.run("replay").stdout.splitlines()) == 1
    assert len(failing.run("list").stdout.splitlines()) == 2
    assert "\nend \\ud800\n" in failing.run("show", id_).stdout


def test_one_odd_dead_letter_hides_no_other(server: Server, opened: Callable[..., FailingApp]) -> None:
    """A client with write access can write anything into the queue: the odd is unknown, and shown."""
    failing = opened(server)
    odd = ('"reason": 5', '"reason": "failed", "died_at": 1e20, "replays": "x"', '"reason": "failed", "died_at": "y"')
    with failing.channel() as channel:
        Queue(failing.dead)(channel).declare()
        publish(channel, _dead_letter("good", failing.queue), failing.dead)
        for place, said in enumerate(odd):
            publish(channel, _message(f"odd-{place}", {dead_letter.HEADER: f'{{"queue": "q", {said}}}'}), failing.dead)
        if server.name != "RabbitMQ":
            for element in ('{"properties": {"delivery_info": "x"}}', '{"properties": {}, "body": 7}', "[" * 10**5):
                channel.client.lpush(failing.dead, element)
    wait_until(lambda: len(failing.dead_letters()) >= 4, within_s=30, what="they are there")
    shown = failing.run("list", "--older-than", "0s").stdout + failing.run("list").stdout
    for name in ("good", "odd-0", "odd-1", "odd-2"):
        assert name in shown
        failing.run("show", name, "--payload")
    failing.run("stats")
    names = [f"odd-{place}" for place in range(len(odd))]
    failing.run("replay", *names, "--to", failing.queue)
    failing.run("discard", *names, "--execute")
    left = {one.id for one in failing.dead_letters()}
    assert "good" in left
    assert not left & {*names}


def test_a_key_that_is_no_list_is_not_a_broker_that_is_away(redis: Server, opened: Callable[..., FailingApp]) -> None:
    """Neither as a dead-letter queue nor as the target of a replay, whose dead letter stays."""
    failing = opened(redis)
    with failing.channel() as channel:
        publish(channel, _dead_letter("one", failing.queue), failing.dead)
        channel.client.set(failing.queue, "no list")
        assert "no list" in failing.run("replay", "--execute", code=1).stderr
        assert [one.id for one in failing.dead_letters()] == ["one"]
        assert "no list" in failing.run("list", "--dead-queue", failing.queue, code=1).stderr
        channel.client.delete(failing.queue, failing.dead)


def test_a_queue_that_is_not_there_is_not_an_empty_one(rabbitmq: Server, opened: Callable[..., FailingApp]) -> None:
    """On Redis a queue without messages has no key, so a missing queue is unknown."""
    failing = opened(rabbitmq)
    for words in (("list",), ("list", "--json"), ("stats",), ("replay",), ("discard", "--all")):
        assert "there is no queue 'nope.dead'" in failing.run(*words, "--queue", "nope").stderr
    assert "there is no queue 'nope.dead'" in failing.run("show", "x", "--queue", "nope", code=1).stderr
    with failing.channel() as channel:
        Queue(failing.dead)(channel).declare()
    assert "there is no queue" not in failing.run("list").stderr


class _Plant:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path(self.path),))


def _send_through(failing: FailingApp, exchange: Exchange, key: str, task: str, *arguments: str) -> str:
    """Call a task the way a producer with routes of its own does."""
    sent = str(uuid4())
    with failing.channel() as channel:
        exchange(channel).declare()
        Producer(channel, exchange, key).publish(
            json.dumps([arguments, {}, {}]),
            headers={"task": task, "id": sent},
            content_type="application/json",
            content_encoding="utf-8",
        )
    return sent


def _message(name: str, headers: dict[str, Any] | None = None) -> Message:
    headers = {"task": "dead.ok", "id": name, "retries": 3, **(headers or {})}
    return Message(BODY, "application/json", "utf-8", headers)


def _dead_letter(name: str, queue: str, reason: str = Reason.FAILED, headers: dict[str, Any] | None = None) -> Message:
    return dead_letter.make_dead_letter(_message(name, headers), Death(reason, queue))


def _note(into: list[tuple[str, bool]], name: str, written: bool) -> None:
    into.append((name, written))


def _holds(channel: Any, queue: str, least: int) -> bool:
    """Whether so many messages wait, asked of the broker itself."""
    try:
        return bool(channel.queue_declare(queue, passive=True).message_count >= least)
    except ChannelError:
        # an empty list on Redis
        return False


@contextmanager
def _refusing(failing: FailingApp, channel: Any) -> Iterator[None]:
    """Make the dead-letter queue refuse messages: full on RabbitMQ, another type on Redis."""
    if failing.broker.product == "RabbitMQ":
        full = Queue(failing.dead, queue_arguments={"x-max-length": 1, "x-overflow": "reject-publish"})(channel)
        full.declare()
        publish(channel, Message(b"1", "application/json", "utf-8"), failing.dead)
        wait_until(partial(_holds, channel, failing.dead, 1), within_s=30, what="it is full")
        yield
        # room for one: RabbitMQ confirms what comes while a queue is being deleted, and it is gone
        full.purge()
    else:
        channel.client.set(failing.dead, "not a list")
        yield
        channel.client.delete(failing.dead)
