"""Which queues `repot move` moves, and that none is left behind in silence."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import Celery
from click.testing import CliRunner
from kombu import pools
from kombu.serialization import register, unregister
from redis import Redis

from repot.chaos.runner.workers import start_worker
from repot.cli.main import main
from repot.config import ExplicitSettings
from repot.migrate import plan as move_plan
from repot.queues import find, queues_of
from repot.waiting import wait_until
from support import queues_app
from support.moves import declare, read
from support.queues_app import NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.testing import Result

    from repot.testbed import Server

pytestmark = pytest.mark.usefixtures("quick_plans")

APP = ("-A", "support.queues_app")


class Deployment:
    """A source whose queues repot was never told, and a part of a Redis as its target."""

    def __init__(self, source: Server, target: Server, directory: Path) -> None:
        self.source, self.target = source, target
        self.prefix = f"{uuid4()}:"
        self.environment = {
            "WORKER_LEASE_STORE": target.url,
            "WORKER_MOVE_DIR": str(directory),
        }
        self.use({})

    def send(self, queue: str, count: int, **options: Any) -> None:
        # kombu remembers what it has declared on a pooled connection, and tests remove it
        pools.reset()
        app = Celery("sender", broker=self.source.url, set_as_current=False)
        app.conf.update(broker_transport_options=options, task_create_missing_queue_type="quorum")
        for number in range(count):
            app.send_task("queues.mail", [number], queue=queue, priority=number % 10)

    def use(self, options: dict[str, Any], url: str = "") -> None:
        """Let the application state these transport options."""
        queues_app.app.conf.update(broker_url=url or self.source.url, broker_transport_options=options)

    def repot(self, word: str, *words: str) -> Result:
        brokers = ["--from", self.source.url, "--to", self.target.url, "--from-management", self.source.management_url]
        brokers += ["--to-options", json.dumps({"global_keyprefix": self.prefix})]
        named = [word, "--name", "friday", "--execute"] if word == "start" else [word]
        return CliRunner().invoke(main, ["move", *named, *brokers, *words], env=self.environment)

    def arrived(self) -> dict[str, int]:
        """Return how many messages are on the target, by list."""
        with Redis.from_url(self.target.url, decode_responses=True) as client:
            names = client.keys(f"{self.prefix}*")
            found = {one.removeprefix(self.prefix): client.llen(one) for one in names if client.type(one) == "list"}
        return {name: count for name, count in found.items() if not name.startswith("repot.")}


@pytest.fixture
def deployment(own: Server, redis: Server, tmp_path: Path) -> Deployment:
    return Deployment(own, redis, tmp_path / "moves")


@pytest.fixture(params=["own", "rabbitmq"])
def each(request: pytest.FixtureRequest, redis: Server, tmp_path: Path) -> Iterator[Deployment]:
    source: Server = request.getfixturevalue(request.param)
    yield Deployment(source, redis, tmp_path / "moves")
    for name in NAMES:
        with closing(source.open()) as broker:
            broker.browse(name, lambda _: _discard())


def _discard() -> Any:
    from repot.brokers.browse import Discard

    return Discard()


@pytest.mark.promise("own")
@pytest.mark.parametrize("command", ["plan", "start"])
def test_a_queue_that_nothing_names_ends_a_move_before_it_begins(each: Deployment, command: str) -> None:
    name = f"slow-{uuid4()}"
    each.send("celery", 1)
    each.send(name, 5)
    refused = each.repot(command)
    assert refused.exit_code == 4, refused.output
    assert f"'{name}' (5 waiting)" in refused.output
    assert "--queue" in refused.stderr
    assert each.arrived() == {}
    assert len(read(each.source, name)) == 5


def test_an_applications_queues_are_all_moved_and_named(deployment: Deployment) -> None:
    for number, name in enumerate(NAMES, start=2):
        deployment.send(name, number)
    assert deployment.repot("start").exit_code == 4
    done = deployment.repot("start", *APP)
    assert done.exit_code == 0, done.output
    assert totals(deployment.arrived()) == {"fast": 2, "slow": 3, "mail": 4, "far": 5}
    for name in NAMES:
        assert f"queue: '{name}' (" in done.stderr
    assert "task_routes" in done.stderr


def totals(lists: dict[str, int]) -> dict[str, int]:
    """Return the messages of each queue, whatever their priorities."""
    found: dict[str, int] = {}
    for name, count in lists.items():
        queue = name.partition("\x06")[0]
        found[queue] = found.get(queue, 0) + count
    return found


def test_a_queue_that_a_worker_reads_is_the_deployments(deployment: Deployment, redis: Server, tmp_path: Path) -> None:
    """By `-Q`, without the application."""
    settings = ExplicitSettings(
        app="support.moved_app",
        broker_url=deployment.source.url,
        result_backend=redis.results_url,
        queue_names=("slow",),
        status_dir=tmp_path / "status",
    )
    worker = start_worker("reader", "slow", settings, tmp_path, 1, ())
    try:
        wait_until(lambda: " ready." in worker.log_tail(100), within_s=60, what="the worker is ready")
        deployment.send("celery", 1)
        shown = deployment.repot("plan")
        assert shown.exit_code == 0, shown.output
        assert "queue: 'slow' (read by celery@reader" in shown.stdout
    finally:
        worker.stop()


def test_queues_are_named_and_narrowed_on_purpose(deployment: Deployment) -> None:
    deployment.send("fast", 2)
    deployment.send("slow", 3)
    done = deployment.repot("start", "--queue", "fast")
    assert done.exit_code == 0, done.output
    assert totals(deployment.arrived()) == {"fast": 2}
    assert "not named by --queue, and stays: 'slow' (on the broker): 3 waiting" in done.stderr
    nowhere = deployment.repot("plan", "--queue", "fasst")
    assert "the source has no queue 'fasst'" in nowhere.stdout


def test_a_mapping_of_a_queue_that_is_not_moved_is_a_typing_error(deployment: Deployment) -> None:
    deployment.send("jobs", 2)
    refused = deployment.repot("start", "--map", "joobs=jobs")
    assert refused.exit_code == 2, refused.output
    assert "'joobs' is not among the queues that are moved" in refused.stderr
    assert "Is 'jobs' meant?" in refused.stderr
    beside = deployment.repot("start", "--queue", "jobs", "--map", "other=jobs")
    assert beside.exit_code == 2, beside.output
    # a queue of the broker that a mapping names is asked for
    done = deployment.repot("start", "--map", "jobs=tasks")
    assert done.exit_code == 0, done.output
    assert totals(deployment.arrived()) == {"tasks": 2}


OPTIONS = pytest.mark.parametrize(
    "options",
    [{"global_keyprefix": "shop:"}, {"priority_steps": list(range(10))}, {"sep": ":"}],
    ids=["prefix", "steps", "separator"],
)


@OPTIONS
def test_what_the_options_in_use_do_not_reach_ends_a_move(deployment: Deployment, options: dict[str, Any]) -> None:
    deployment.send("jobs", 30, **options)
    for words in ((), ("--queue", "jobs")):
        refused = deployment.repot("start", *words)
        assert refused.exit_code == 4, refused.output
        assert "give --from-options '{" in refused.stderr
        assert "or -A" in refused.stderr
        assert deployment.arrived() == {}
    # as the sentence says
    named = refused.stderr.partition("--from-options '")[2].partition("'")[0]
    done = deployment.repot("start", "--queue", "jobs", "--from-options", named)
    assert done.exit_code == 0, done.output
    assert totals(deployment.arrived()) == {"jobs": 30}


@OPTIONS
def test_an_application_supplies_its_transport_options(deployment: Deployment, options: dict[str, Any]) -> None:
    deployment.send("slow", 30, **options)
    deployment.use(options)
    done = deployment.repot("start", *APP)
    assert done.exit_code == 0, done.output
    assert totals(deployment.arrived()) == {"slow": 30}
    # they are remembered for the move's name
    assert CliRunner().invoke(main, ["move", "verify", "friday"], env=deployment.environment).exit_code == 0


def test_another_prefix_is_another_applications_where_one_is_stated(deployment: Deployment) -> None:
    deployment.send("slow", 3, global_keyprefix="shop:")
    deployment.send("slow", 4, global_keyprefix="other:")
    deployment.use({"global_keyprefix": "shop:"})
    done = deployment.repot("start", *APP)
    assert done.exit_code == 0, done.output
    assert totals(deployment.arrived()) == {"slow": 3}
    assert "note: 4 messages wait under the prefix 'other:'" in done.stderr


def test_an_unknown_transport_option_is_refused_with_the_nearest(deployment: Deployment) -> None:
    deployment.send("celery", 3)
    for side in ("from", "to"):
        refused = deployment.repot("plan", f"--{side}-options", '{"global_keyprefx": "shop:"}')
        assert refused.exit_code == 2, refused.output
        assert f"--{side}-options: no transport of kombu's reads 'global_keyprefx'" in refused.stderr
        assert "Is 'global_keyprefix' meant?" in refused.stderr
    usual = {"visibility_timeout": 3600, "socket_keepalive": True, "max_retries": 3, "health_check_interval": 25}
    assert deployment.repot("plan", "--from-options", json.dumps(usual)).exit_code == 0


def test_dead_letters_stay_and_are_counted(deployment: Deployment) -> None:
    deployment.send("celery", 2)
    deployment.send("celery.dead", 1)
    done = deployment.repot("start")
    assert done.exit_code == 0, done.output
    assert "note: the dead-letter queue 'celery.dead' stays, with 1 dead letters" in done.stderr
    assert totals(deployment.arrived()) == {"celery": 2}


def test_a_move_that_goes_on_keeps_to_its_journal(deployment: Deployment) -> None:
    deployment.send("jobs", 4)
    stopped = deployment.repot("start", "--queue", "jobs", "--limit", "2", "--window", "2")
    assert stopped.exit_code == 0, stopped.output
    deployment.send("later", 1)
    done = CliRunner().invoke(main, ["move", "resume", "friday", "--execute"], env=deployment.environment)
    assert done.exit_code == 0, done.output
    assert totals(deployment.arrived()) == {"jobs": 4}


def test_the_rights_of_the_page_are_enough_to_look(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    # what is refused is not counted later either
    for one in (find, move_plan):
        monkeypatch.setattr(one, "_COUNTED_WITHIN_S", 0.1)
    deployment.send("orders", 3)
    page = (Path(__file__).parents[2] / "docs" / "rights.md").read_text()
    url = deployment.source.url.replace("redis://", "redis://mover:PASSWORD@")
    with Redis.from_url(deployment.source.url) as client:
        base, more = (line.split() for line in re.findall(r"^ACL SETUSER mover (.*)$", page, re.MULTILINE))
        client.execute_command("ACL SETUSER", "mover", *base)  # type: ignore[no-untyped-call]
        assert "unknown: not every key" in (found := deployment.repot("plan", "--from", url)).stdout or (
            "unknown: SCAN is refused" in found.stdout
        )
        client.execute_command("ACL SETUSER", "mover", *more)  # type: ignore[no-untyped-call]
        shown = deployment.repot("plan", "--from", url, "--queue", "orders")
        assert shown.exit_code == 0, shown.output
        assert "unknown: SCAN" not in shown.stdout
        assert "unknown: not every" not in shown.stdout
        assert "unknown: what workers hold" not in shown.stdout
        assert "unknown: which queues workers read" not in shown.stdout
        for right in ("scan", "smembers", "hlen", "hscan"):
            client.execute_command("ACL SETUSER", "mover", f"-{right}")  # type: ignore[no-untyped-call]
            deployment.send("other", 1)
            client.hset("unacked", "tag", "[{")
            lacking = deployment.repot("plan", "--from", url, "--queue", "orders").stdout
            assert "unknown: SCAN" in lacking or "unknown: not every" in lacking or "unknown: what workers" in lacking
            client.execute_command("ACL SETUSER", "mover", f"+{right}")  # type: ignore[no-untyped-call]


def test_what_cannot_be_looked_for_is_unknown(deployment: Deployment) -> None:
    """A queue that the application names is asked for by its name."""
    deployment.send("slow", 3)
    with Redis.from_url(deployment.source.url) as client:
        client.execute_command("ACL SETUSER", "looker", "on", ">secret", "~*", "&*", "+@all", "-scan")  # type: ignore[no-untyped-call]
    url = deployment.source.url.replace("redis://", "redis://looker:secret@")
    deployment.use({}, url)
    shown = deployment.repot("plan", "--from", url, *APP)
    assert shown.exit_code == 0, shown.output
    assert "SCAN is refused" in shown.stdout
    assert "queue: 'slow' (task_queues, on the broker): 3 waiting" in shown.stdout


def test_the_default_of_a_deployment_without_messages_is_moved_as_before(deployment: Deployment) -> None:
    assert deployment.repot("start").exit_code == 0
    declare(deployment.source, "empty")
    wait_until(lambda: deployment.repot("plan").exit_code == 0, within_s=30, what="an empty queue is no obstacle")


def test_an_application_without_messages_has_its_queues_in_the_plan(deployment: Deployment) -> None:
    """And not the default one alone, which it may not use."""
    shown = deployment.repot("plan", "-A", "support.queues_app")
    named, _ = queues_of(queues_app.app)
    assert len(named) > 2
    assert [one for one in named if f"queue: {one!r}" not in shown.stdout] == [], shown.output
    assert "'celery'" not in shown.stdout


SEALED = "application/x-sealed"


@pytest.fixture
def sealed() -> Iterator[None]:
    """A serializer of the application's own, as a public project signs its pickles; its workers take nothing else."""
    register("sealed", lambda body: json.dumps(body)[::-1], lambda text: json.loads(text[::-1]), SEALED, "utf-8")
    before = queues_app.app.conf.accept_content
    queues_app.app.conf.update(accept_content=["sealed"])
    yield
    queues_app.app.conf.update(accept_content=before)
    unregister("sealed")


def _send_sealed(deployment: Deployment) -> None:
    pools.reset()
    app = Celery("sender", broker=deployment.source.url, set_as_current=False)
    app.conf.update(task_create_missing_queue_type="quorum")
    for number in range(12):
        app.send_task("queues.mail", [number], queue="slow", serializer="sealed")


@pytest.mark.usefixtures("sealed")
def test_what_the_applications_workers_take_is_moved(deployment: Deployment) -> None:
    _send_sealed(deployment)
    for words in (("--queue", "slow"), ()):
        refused = deployment.repot("start", *words)
        assert refused.exit_code == 4, refused.output
    assert (
        "12 of the messages looked at cannot be read; --raw moves them"
        in deployment.repot("plan", "--queue", "slow").stdout
    )
    done = deployment.repot("start", *APP)
    assert done.exit_code == 0, done.output
    assert totals(deployment.arrived()) == {"slow": 12}


def test_a_flipped_application_keeps_its_names_for_the_way_back(
    deployment: Deployment, rabbitmq: Server, tmp_path: Path
) -> None:
    """Its broker is RabbitMQ now, which has no prefix; what came back to Redis without one was read by no worker."""
    back = Deployment(rabbitmq, deployment.target, tmp_path / "back")
    back.prefix = deployment.prefix
    name = f"back-{uuid4()}"
    back.use({"global_keyprefix": deployment.prefix})
    back.send(name, 3)
    brokers = ["--from", rabbitmq.url, "--to", back.target.url, "--from-management", rabbitmq.management_url]
    words = ["move", "start", "--name", "back", *brokers, *APP, "--queue", name, "--execute"]
    done = CliRunner().invoke(main, words, env=back.environment)
    assert done.exit_code == 0, done.output
    assert {name: 3} == totals(back.arrived())
