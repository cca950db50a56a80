"""During an upgrade of Celery, workers and producers of two releases share a broker, with and without repot."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import Celery

import repot
from repot.chaos.instruments.journal import ENDED
from repot.config import ExplicitSettings, child_environment, inherited_environment
from repot.testbed import rabbitmq_server
from repot.testbed.process import ReapedProcess
from repot.waiting import wait_until
from support import forked
from support.appended import appended_lines
from support.applications import MINORS, ROOT, interpreter, python_of, workers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from repot.testbed import Server
    from support.shop import Shop

SOURCE = ROOT / "tests/tutorial_apps/mixed_fleet"
WITHIN_S = 60


@dataclass(frozen=True)
class Side:
    """A worker and producers of one release, with repot or without."""

    python: str
    release: str
    with_repot: bool


@dataclass(frozen=True)
class Fleet:
    """Workers of two sides, each with a queue of its own."""

    directory: Path
    server: Server
    results: str
    sides: dict[str, Side]
    queues: dict[str, str]

    def environment(self, name: str) -> dict[str, str]:
        """The variables of a side's processes."""
        outer = inherited_environment(without=("WORKER_", "CELERY_", "PYTHON", "SHOP_"))
        queues = ",".join(self.queues.values())
        own = {
            "SHOP_BROKER": self.server.url,
            "SHOP_RESULTS": self.results,
            "SHOP_RUNS": str(self.directory / "runs"),
            "SHOP_QUEUES": queues,
        }
        if self.sides[name].with_repot:
            own |= {"SHOP_WITH_REPOT": "1", "WORKER_BROKER_URL": self.server.url, "WORKER_RESULT_BACKEND": self.results}
            own |= {"WORKER_STATUS_DIR": str(self.directory / "status")}
        return outer | own

    def start(self, name: str) -> ReapedProcess:
        """A worker of a side."""
        command = [self.sides[name].python, "-m", "celery", "-A", "shop", "worker", "-l", "INFO", "-c", "2"]
        command += ["-Q", self.queues[name], "-n", f"{name}@{self.queues[name]}"]
        log = self.directory / f"{name}.log"
        return ReapedProcess(command, log=log, environment=self.environment(name), directory=SOURCE)

    def start_ready(self, name: str) -> ReapedProcess:
        """A worker that is ready."""
        process = self.start(name)
        try:
            wait_until(lambda: " ready." in process.log_tail(200), within_s=WITHIN_S, what=f"{name} is ready")
        except Exception as error:
            error.add_note(process.log_tail(40))
            process.stop()
            raise
        return process

    def ask(self, name: str, call: str) -> Any:
        """Call a function of the application in a process of a side; return what it returns."""
        command = [self.sides[name].python, "-c", f"import json, shop; print(json.dumps(shop.{call}))"]
        environment = self.environment(name)
        found = forked.run(command, cwd=SOURCE, env=environment, capture_output=True, text=True, check=False)
        logs = "\n".join((self.directory / f"{one}.log").read_text()[-3000:] for one in self.queues)
        assert found.returncode == 0, f"{found.stderr}\n{logs}"
        return json.loads(found.stdout.splitlines()[-1])

    @property
    def runs(self) -> list[str]:
        """What has run, with the release that ran it."""
        return sorted(appended_lines(self.directory / "runs"))

    def check_exchange(self) -> None:
        """Let a producer of each side send what crosses both; everything ran once, where it was sent."""
        found = {name: self.ask(name, f"sent_by({name!r})") for name in self.sides}
        old, new = (one.release for one in self.sides.values())
        expected: list[str] = []
        for who, results in found.items():
            links = [f"{who}-first", f"{who}-0-new", f"{who}-1-old", f"{who}-2-new"]
            heads = [f"{who}-head-new", f"{who}-head-old"]
            assert {
                "chain": links,
                "chords": [heads, heads],
                "retries": [f"{who}-from-old", f"{who}-from-new"],
                "eta": [[f"{who}-eta-old"], [f"{who}-eta-new"]],
                "revoked": ["TaskRevokedError"] * 2,
            } == results
            expected += [f"{link} {release}" for link, release in zip(links, (old, new, old, new), strict=True)]
            for side, release, other in (("old", old, new), ("new", new, old)):
                expected += [f"{who}-head-{side} {release}"] * 2
                expected += [f"{who}-body-{side} {release}", f"{who}-eta-{side} {release}"]
                again = f"{who}-from-{side}"
                expected += [f"{again}-0 {release}", f"{again}-1 {other}", f"{again}-2 {release}"]
        assert sorted(expected) == self.runs


def fleet_of(directory: Path, server: Server, redis: Server, old: Side, new: Side) -> Fleet:
    """Two sides, without workers yet."""
    token = uuid4().hex[:12]
    queues = {"old": f"old-{token}", "new": f"new-{token}"}
    return Fleet(directory, server, redis.results_url, {"old": old, "new": new}, queues)


@contextmanager
def working(fleet: Fleet) -> Iterator[None]:
    """Both workers, ready."""
    with ExitStack() as stack:
        for name in fleet.sides:
            stack.callback(fleet.start_ready(name).stop)
        yield


def side_of(python: str, *, with_repot: bool) -> Side:
    """The side of the release of Celery in an environment."""
    return Side(python, _release(python), with_repot)


@cache
def _release(python: str) -> str:
    code = "import celery; print(celery.__version__)"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.promise("redis-both with repot")
@pytest.mark.parametrize(
    "with_repot", [("old", "new"), ("new",), ("old",)], ids=["both with repot", "new with repot", "old with repot"]
)
def test_two_releases_exchange_chains_chords_retries_revokes_and_etas(
    server: Server, redis: Server, tmp_path: Path, with_repot: tuple[str, ...]
) -> None:
    # `make test` has made this environment already
    old = side_of(interpreter("oldest"), with_repot="old" in with_repot)
    new = side_of(python_of("5.7"), with_repot="new" in with_repot)
    fleet = fleet_of(tmp_path, server, redis, old, new)
    with working(fleet):
        fleet.check_exchange()


def cells() -> dict[tuple[str, str, str], str]:
    """What the page says about each release of Celery on each of RabbitMQ, without repot and with it."""
    text = (ROOT / "docs/celery-releases.md").read_text().partition("## Celery and RabbitMQ")[2]
    head, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"
    )
    return {(row[0], row[1], column): cell for row in rows for column, cell in zip(head[2:], row[2:], strict=True)}


#: What RabbitMQ denies as it is published, and distributions may permit.
DENIED = {"4.3": ("transient_nonexcl_queues", "global_qos")}


@pytest.fixture(scope="module")
def published(rabbitmq: Server) -> Iterator[Server]:
    """The RabbitMQ of this machine, as it is published."""
    denied = DENIED.get(minor_of(rabbitmq), ())
    if not denied:
        yield rabbitmq
        return
    with rabbitmq_server("\n".join(f"deprecated_features.permit.{one} = false" for one in denied)) as server:
        yield server


def minor_of(server: Server) -> str:
    return ".".join(server.version.split(".")[:2])


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize("how", ["stock", "repot"])
def test_a_release_runs_on_this_rabbitmq_or_ends_as_the_page_says(
    published: Server, redis: Server, tmp_path: Path, minor: str, how: str
) -> None:
    """Chains, chords, retries, ETA, replies to control commands, and events."""
    says = cells().get((minor, how, minor_of(published)))
    if says is None:
        pytest.skip(f"docs/celery-releases.md says nothing about RabbitMQ {published.version}")
    side = side_of(python_of(minor), with_repot=how == "repot")
    fleet = fleet_of(tmp_path, published, redis, side, side)
    if says == "runs":
        with working(fleet):
            fleet.check_exchange()
            assert fleet.ask("old", "events_seen()")
        return
    worker = fleet.start("old")
    try:
        wait_until(lambda: f"({says.split()[-1]}" in worker.log_tail(500), within_s=WITHIN_S, what=says)
        assert " ready." not in worker.log_tail(500)
    finally:
        worker.stop()


#: The release whose worker has a task first, and the other.
ORDERS = [("5.4", "5.7"), ("5.7", "5.4")]


def start(shop: Shop, minor: str) -> ReapedProcess:
    """A worker of one process."""
    with workers_of(python_of(minor)):
        return shop.start(1)


def run(shop: Shop, minor: str, *words: str) -> str:
    """Run Python with the settings of a shop; return what it printed."""
    environment = child_environment(shop.settings) | {"PYTHONPATH": str(ROOT / "tests")}
    found = forked.run([python_of(minor), *words], env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return str(found.stdout)


@pytest.mark.parametrize(("first", "second"), ORDERS)
def test_a_lease_of_one_release_keeps_the_other_from_the_effect(
    server: Server, redis: Server, opened: Callable[..., Shop], first: str, second: str
) -> None:
    shop = opened(server, redis)
    hold = shop.file()
    start(shop, first)
    one = shop.send("charge", "o-1", 1, "", str(hold))
    shop.await_effects("o-1")
    start(shop, second)
    two = shop.send("charge", kwargs={"order": "o-1", "after": str(hold)})
    shop.await_lines(ENDED, two.id)
    hold.touch()
    expected = {"order": "o-1", "amount": 1, "by": one.id}
    assert [expected, expected] == [shop.get(one), shop.get(two)]
    assert len(shop.effects("o-1")) == 1
    assert len({line.worker for line in shop.lines(ENDED)}) == 2


SUBMIT = """
from celery import Celery
from repot.config import Role
from repot.submission import Jobs
from repot.worker.configure import configure
app = Celery("producer", set_as_current=False)
configure(app, role=Role.CLIENT)
jobs = Jobs(app, "jobs.render", scope="project")
"""


@pytest.mark.parametrize(("first", "second"), ORDERS)
def test_a_job_of_one_release_is_run_by_the_other(
    server: Server, redis: Server, opened: Callable[..., Shop], first: str, second: str
) -> None:
    shop = opened(server, redis, app="support.job_app", lease=20)
    start(shop, second)
    submit = "print(jobs.submit({'project': 'p-1'}).job.id)"
    job = run(shop, first, "-c", f"{SUBMIT}{submit}").strip()
    (ended,) = shop.await_lines(ENDED, job)
    assert ended.details["state"] == "SUCCESS"
    look = f"found = jobs.get({job!r}); print(found.status.value, found.attempts, found.scope)"
    assert run(shop, first, "-c", f"{SUBMIT}{look}").split() == ["succeeded", "1", "p-1"]


@pytest.mark.parametrize(("first", "second"), ORDERS)
def test_a_dead_letter_of_one_release_is_replayed_by_the_other(
    server: Server, redis: Server, opened: Callable[..., Shop], first: str, second: str
) -> None:
    changes = {"app": "support.dead_app", "management_url": server.management_url}
    shop = opened(server, redis, **changes)
    repaired = shop.file()
    worker = start(shop, first)
    sent = shop.client.send_task("dead.repaired", (str(repaired),))
    dlq = ("-m", "repot", "dlq")

    def listed() -> list[str]:
        return [one["id"] for one in json.loads(run(shop, second, *dlq, "list", "--queue", shop.name, "--json"))]

    wait_until(lambda: [sent.id] == listed(), within_s=WITHIN_S, what="the dead letter is there")
    # a warm end: the message is acknowledged
    worker.signal(signal.SIGTERM)
    wait_until(lambda: worker.exit_code == 0, within_s=WITHIN_S, what="the worker has ended")
    start(shop, second)
    repaired.touch()
    run(shop, second, *dlq, "replay", "--queue", shop.name, "--execute")
    wait_until(lambda: sent.id in repaired.read_text(), within_s=WITHIN_S, what="the task has run")
    assert len(appended_lines(repaired)) == 1


STOCK_SENDER = """
import sys
from celery import Celery
from kombu import Queue
url, queue, declares = sys.argv[1:]
app = Celery("stock", broker=url)
app.conf.update(task_default_queue=queue)
if declares == "no":
    app.conf.update(task_queues=[Queue(queue, no_declare=True)])
app.send_task("shop.add")
"""


@pytest.mark.promise("rabbitmq-not declared")
@pytest.mark.parametrize(
    ("declares", "kept", "is_refused"),
    [
        ("yes", {}, True),
        ("no", {}, False),
        # as a deployment that is on RabbitMQ already
        ("yes", {"queue_type": "classic", "dead_letter_queue": ""}, False),
    ],
    ids=["declared", "not declared", "kept"],
)
def test_a_stock_sender_uses_a_queue_of_repots_as_the_page_says(
    server: Server, redis: Server, declares: str, kept: dict[str, Any], *, is_refused: bool
) -> None:
    """On Redis there is nothing to declare."""
    queue = f"q-{uuid4()}"
    addresses: dict[str, Any] = {"broker_url": server.url, "result_backend": redis.results_url}
    ours = Celery("ours", set_as_current=False)
    repot.configure(ours, ExplicitSettings(**addresses, queue_names=(queue,), **kept))
    ours.send_task("shop.add")
    command = [sys.executable, "-c", STOCK_SENDER, server.url, queue, declares]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    refused = is_refused and server.url.startswith("amqp")
    assert refused == ("PRECONDITION_FAILED" in done.stderr), done.stderr
    assert refused == (done.returncode != 0)
    with ours.connection_for_read() as connection:
        channel: Any = connection.default_channel
        wait_until(
            lambda: (1 if refused else 2) == channel.queue_declare(queue, passive=True).message_count,
            within_s=20,
            what="the queue has what was sent",
        )
