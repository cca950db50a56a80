"""Messages of an adopted application go where stock Celery sends them, delayed or not."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import Celery, group
from kombu import Connection, Queue

from repot.chaos.instruments.journal import ENDED, READY, STARTED, Journal
from repot.chaos.runner.worker_process import READY_WITHIN_S
from repot.chaos.runner.workers import start_worker
from repot.config import ExplicitSettings, Role
from repot.waiting import wait_until
from repot.worker.configure import configure
from support import forked
from support.releases import needs
from support.shared_rabbitmq import with_virtual_host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.testbed import ReapedProcess, Server

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "routing.py"


@needs("celery", "5.5", "it has no delays of its own to compare with")
@pytest.mark.promise
@pytest.mark.parametrize(("broker", "number"), [("redis", 25), ("rabbitmq", 6)])
def test_made_up_applications_reach_the_same_queues(
    request: pytest.FixtureRequest, broker: str, number: int, redis: Server
) -> None:
    """`benchmarks/routing.py` for a few seconds."""
    url = f"{redis.url.removesuffix('/0')}/7" if broker == "redis" else request.getfixturevalue(broker).url
    command = [
        sys.executable,
        str(PROGRAM),
        "--broker",
        broker,
        "--url",
        url,
        "--configurations",
        str(number),
        "--seed",
        "7",
    ]
    done = forked.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert number == json.loads(done.stdout.splitlines()[-1])["configurations"]


@pytest.mark.promise
def test_bare_queues_get_each_message_once(server: Server) -> None:
    """As Celery's manual writes them; all behind our topic exchange, each of them got every message."""
    names = [f"{name}-{uuid4()}" for name in ("main", "other")]
    app = Celery("bare", set_as_current=False)
    ways: list[dict[str, Any]] = [{}, {"queue": names[0]}, {"queue": names[1]}]
    app.conf.update(task_default_queue=names[0], task_queues=[Queue(name) for name in names])
    configure(app, ExplicitSettings(broker_url=server.url), Role.CLIENT)  # type: ignore[arg-type]
    with app.connection_for_write() as connection:
        # as a worker does on its start
        app.amqp.TaskConsumer(connection.default_channel)
        for options in ways:
            app.send_task("repot.run", ignore_result=True, **options)
        assert [_taken(connection, name) for name in names] == [2, 1]


def test_messages_of_configured_applications_alone_say_when_they_were_sent(server: Server) -> None:
    """Another application of the process sends what stock Celery sends; a time that the caller gives stays."""
    queue = f"stamped-{uuid4()}"
    ours: Any = Celery("ours", set_as_current=False)
    stock: Any = Celery("stock", broker=server.url, set_as_current=False)
    configure(ours, ExplicitSettings(broker_url=server.url, queue_names=(queue,)), Role.CLIENT)  # type: ignore[arg-type]
    before = int(time())
    with ours.connection_for_write() as connection:
        channel: Any = connection.default_channel
        ours.amqp.TaskConsumer(channel)
        ways: list[tuple[Any, dict[str, Any]]] = [(ours, {}), (ours, {"timestamp": 7})]
        ways.append((stock, {"queue": Queue(queue), "declare": []}))
        found = []
        for app, options in ways:
            app.send_task("repot.run", ignore_result=True, **options)
            message = wait_until(lambda: channel.basic_get(queue, no_ack=True), within_s=30, what="the message")
            found.append(message.properties.get("timestamp"))
    assert before <= found[0] <= time()
    assert found[1:] == [7, None]


def _taken(connection: Connection, queue: str) -> int:
    channel: Any = connection.default_channel
    wait_until(lambda: channel.basic_get(queue, no_ack=True), within_s=30, what="the first message")
    return 1 + sum(1 for _ in iter(lambda: channel.basic_get(queue, no_ack=True), None))


class Deployment:
    """An application without a list of queues, and a worker of one that nothing declares."""

    def __init__(self, server: Server, redis: Server, directory: Path) -> None:
        token = uuid4()
        self.queue = f"other-{token}"
        self.settings = ExplicitSettings(
            broker_url=server.url,  # type: ignore[arg-type]
            result_backend=redis.results_url,  # type: ignore[arg-type]
            queue_names=(f"main-{token}",),
            journal=directory / "journal",
            status_dir=directory / "status",
        )
        self.journal = Journal(directory / "journal")
        self.client = Celery("test", set_as_current=False)
        configure(self.client, self.settings, Role.CLIENT)
        self.worker: ReapedProcess = start_worker(f"w-{token}", self.queue, self.settings, directory, 2)

    def at(self, what: str, task: str = "", number: int = 1, within_s: float = 30) -> list[float]:
        """When it happened, as soon as it has so often."""

        def found() -> list[float]:
            times = [line.at for line in self.journal.read() if (line.kind, line.task) == (what, task)]
            return times if len(times) >= number else []

        try:
            return wait_until(found, within_s=within_s, what=f"{what} {task}")
        except Exception as error:
            error.add_note(self.worker.log_tail(40))
            raise


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def deployment(
    request: pytest.FixtureRequest, redis: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    server = request.getfixturevalue(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("WORKER_APP", raising=False)
        found = Deployment(server, redis, tmp_path_factory.mktemp("routing"))
        found.at(READY, within_s=READY_WITHIN_S)
        yield found
        found.worker.stop()


def test_delays_of_any_length_are_kept(deployment: Deployment, caplog: pytest.LogCaptureFixture) -> None:
    """Celery's own delays by RabbitMQ fail below one second: `int(countdown)`."""
    sent = {}
    for delay_s in (0.01, 0.5, 0.999, 1, 1.9):
        for said in ("countdown", "eta", "eta as text"):
            eta = datetime.now(UTC) + timedelta(seconds=delay_s)
            when = {"countdown": delay_s} if said == "countdown" else {"eta": eta if said == "eta" else eta.isoformat()}
            task = str(uuid4())
            sent[task] = (said, delay_s, monotonic())
            deployment.client.send_task("repot.run", (0,), task_id=task, queue=deployment.queue, **when)
    assert "Direct exchanges are not supported" not in caplog.text
    for task, (said, delay_s, at) in sent.items():
        (began,) = deployment.at(STARTED, task)
        # as exact as an ETA is written; a worker looks for what is due once a second
        assert delay_s - 0.01 <= began - at <= delay_s + 60, said


def test_a_skewed_group_is_sent(deployment: Deployment) -> None:
    """Its delays are parts of seconds."""
    one = deployment.client.signature("repot.run", (0,), queue=deployment.queue)
    sent: Any = group([one.clone() for _ in range(3)], app=deployment.client).skew(start=0.1, step=0.3).apply_async()
    for task in sent.children:
        deployment.at(ENDED, task.id)


def test_a_delayed_task_that_retries_comes_back_to_its_queue(deployment: Deployment) -> None:
    """And not to the default one, which nothing consumes; with Celery's own delays it does not."""
    tasks = {str(uuid4()): countdown_s for countdown_s in (0.5, 1.2)}
    for task, countdown_s in tasks.items():
        deployment.client.send_task("repot.retry", (2, countdown_s), task_id=task, queue=deployment.queue, countdown=1)
    for task, countdown_s in tasks.items():
        began = deployment.at(STARTED, task, 3)
        assert all(after - before >= countdown_s - 0.01 for before, after in pairwise(began))


def test_a_worker_of_an_undeclared_queue_says_nothing_untrue(deployment: Deployment) -> None:
    """`-Q other` alone: Celery said at each start that there were no delays, as the default queue was not there."""
    wait_until(lambda: "ready." in deployment.worker.log_tail(500), within_s=30, what="the last line of a start")
    said = deployment.worker.log_tail(500)
    assert "CRITICAL" not in said
    assert "native delayed delivery" not in said.lower()


@pytest.mark.parametrize("deployment", ["rabbitmq"], indirect=True)
def test_an_undeclared_queue_has_what_ours_have(deployment: Deployment, rabbitmq: Server) -> None:
    """Quorum, and dead letters; `amqp` refuses to declare it otherwise."""
    dead = deployment.settings.dead_letters_of(deployment.queue)
    arguments = {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    with Connection(rabbitmq.url) as connection:
        Queue(deployment.queue, queue_arguments=arguments)(connection.default_channel).queue_declare()
        Queue(dead)(connection.default_channel).queue_declare(passive=True)


def test_a_delayed_message_is_kept_before_any_worker_has_started(rabbitmq: Server) -> None:
    """What delays it is made by who sends; stock Celery leaves that to workers, and such a message is lost."""
    name = f"early-{uuid4()}"
    with with_virtual_host(rabbitmq) as apart:
        app = Celery("early", set_as_current=False)
        configure(app, ExplicitSettings(broker_url=apart.url, queue_names=(name,)), Role.CLIENT)  # type: ignore[arg-type]
        app.send_task("repot.run", countdown=4, ignore_result=True)
        with Connection(apart.url) as connection:
            channel: Any = connection.default_channel
            assert channel.basic_get(name, no_ack=True) is None
            wait_until(lambda: channel.basic_get(name, no_ack=True), within_s=30, what="it arrives")


@pytest.mark.promise
def test_a_delayed_message_reaches_no_queue_whose_name_ends_alike(rabbitmq: Server) -> None:
    """Kombu binds `#.<key>`, which a longer key matches that ends so."""
    token = uuid4()
    names = (f"x-{token}", f"a.x-{token}", f"b.a.x-{token}")
    app = Celery("alike", set_as_current=False)
    configure(app, ExplicitSettings(broker_url=rabbitmq.url, queue_names=names), Role.CLIENT)  # type: ignore[arg-type]
    sent = {name: [str(uuid4()) for _ in range(2)] for name in names}
    for name, (now, later) in sent.items():
        app.send_task("repot.run", task_id=now, queue=name, ignore_result=True)
        app.send_task("repot.run", task_id=later, queue=name, ignore_result=True, countdown=1)
    arrived: dict[str, list[str]] = {name: [] for name in names}
    with Connection(rabbitmq.url) as connection:
        channel: Any = connection.default_channel

        def all_arrived() -> bool:
            for name, found in arrived.items():
                while message := channel.basic_get(name, no_ack=True):
                    found.append(message.headers["id"])
            return all(len(found) >= len(sent[name]) for name, found in arrived.items())

        wait_until(all_arrived, within_s=30, what="all arrive")
        # what went astray comes by the same exit at the same time
        all_arrived()
    assert sent == arrived
