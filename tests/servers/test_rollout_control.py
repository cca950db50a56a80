"""Commands to workers during a rollout: they reach both sides, and what is revoked stays so wherever it arrives."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import Celery
from celery.app.control import Control
from click.testing import CliRunner
from kombu import Connection
from kombu.exceptions import OperationalError

from repot.chaos.runner.proxies import Proxy
from repot.cli.main import main
from repot.config import Role, child_environment
from repot.errors import DeadlineExceeded
from repot.healthcheck.queue_counts import QueueCounter
from repot.rollout.phases import Plan
from repot.rollout.rollout import open_rollout
from repot.routing.side import Side
from repot.testbed import LOOPBACK, free_port
from repot.waiting import wait_until
from repot.worker import status_file
from repot.worker.configure import configure
from support import forked
from support.rollouts import DIRECTIONS, NAME, TASKS, Rollout, rollout_between

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from repot.testbed import Server

SOURCE, TARGET = Side.SOURCE, Side.TARGET


@pytest.fixture(scope="module", params=DIRECTIONS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rollout]:
    """A rollout in each direction, with a worker on each side."""
    rollout = rollout_between(request, tmp_path_factory.mktemp("both"))
    rollout.begin(0)
    rollout.start_workers(1)
    yield rollout
    rollout.stop()


@pytest.fixture(scope="module")
def away(redis: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rollout]:
    """A rollout without its target, with a worker of its source."""
    urls = f"{redis.url.removesuffix('/0')}/5", f"amqp://me:planted@{LOOPBACK}:{free_port()}//"
    rollout = Rollout(*urls, redis, tmp_path_factory.mktemp("away"))
    rollout.begin(0)
    rollout.start_worker(SOURCE, 1)
    yield rollout
    rollout.stop()


def node(rollout: Rollout, side: Side) -> str:
    """The name of a side's worker."""
    return f"celery@{side}-{list(Side).index(side)}-{rollout.token}"


def celery(rollout: Rollout, *words: str, side: Side = SOURCE) -> subprocess.CompletedProcess[str]:
    """Run Celery's own program."""
    environment = child_environment(rollout.settings.replace(rollout_side=side.value))
    return forked.run(
        [sys.executable, "-m", "celery", "-A", TASKS, *words],
        env=environment | {"PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


#: Asks for two seconds; who needs an answer from a busy worker asks again.
PING = ("inspect", "ping", "--json", "-t", "2")


def pinged(answer: subprocess.CompletedProcess[str]) -> set[str]:
    """The nodes that `PING` heard."""
    return set(json.loads(answer.stdout or "{}"))


def names(replies: list[dict[str, Any]] | None) -> set[str]:
    return {name for reply in replies or () for name in reply}


def require(expected: Any, ask: Callable[[], Any]) -> None:
    """Ask until it is answered so: Celery waits for a second, and workers may be busy for longer."""
    found: list[Any] = []

    def is_so() -> bool:
        found[:] = [ask()]
        return found == [expected]

    try:
        wait_until(is_so, within_s=60, what="all answer")
    except DeadlineExceeded as error:
        error.add_note(f"the last answer: {found}")
        raise


def require_pinged(rollout: Rollout, side: Side, expected: str) -> subprocess.CompletedProcess[str]:
    """Ask with a program of a side until this node alone answers; return what it printed then."""
    answers: list[subprocess.CompletedProcess[str]] = []

    def ask() -> set[str]:
        answers.append(celery(rollout, *PING, side=side))
        return pinged(answers[-1])

    require({expected}, ask)
    return answers[-1]


@pytest.mark.parametrize(("both", "side"), [(DIRECTIONS[0], side) for side in Side], indirect=["both"])
def test_the_program_celery_asks_the_workers_of_both_sides(both: Rollout, side: Side) -> None:
    """A worker of the side that is not the program's own is named with its side."""
    here, there = node(both, side), f"{node(both, side.other)}/{side.other}"
    require({here, there}, lambda: pinged(celery(both, *PING, side=side)))
    if side is SOURCE:
        words = ["control", "rate_limit", f"{TASKS}.note", "0", "-t", "2"]
        require({here, there}, lambda: set(re.findall(r"->\s+(\S+): OK", celery(both, *words, side=side).stdout)))
    else:
        require(True, lambda: "2 nodes online" in celery(both, "status", "-t", "2", side=side).stdout)


def status(rollout: Rollout, management_url: str, *options: str) -> str:
    """Run `repot rollout status`."""
    environment = child_environment(rollout.settings) | {"WORKER_MANAGEMENT_URL": management_url}
    shown = CliRunner().invoke(main, ["rollout", "status", NAME, *options], env=environment)
    assert shown.exit_code == 0, shown.output
    return shown.stdout


def test_the_status_has_the_workers_of_both_sides(both: Rollout, rabbitmq: Server) -> None:
    with open_rollout(NAME, both.settings) as opened:
        opened.store.put_plan(Plan(queues=(both.queue,)))
    both.producer().send_task(f"{TASKS}.note", ["status"])
    both.await_ran(["status"])
    found: dict[str, Any] = {}

    def is_reported() -> bool:
        # both report each second, and RabbitMQ's counts lag
        found.update(json.loads(status(both, rabbitmq.management_url, "--json")))
        source = found["sides"][SOURCE]
        return bool(source["sent"] and source["finished"] and all(found["depths"].values()))

    wait_until(is_reported, within_s=30, what="the worker, the producer and the brokers have reported")
    expected = [(node(both, side), side, "running", [both.queue]) for side in Side]
    workers = [(one["node"], one["side"], one["phase"], one["queues"]) for one in found["workers"]]
    assert expected == sorted(workers, key=lambda one: one[1])
    assert all(one["age_s"] < 30 for one in found["workers"])
    assert found["sides"][TARGET]["finished"] == 0
    assert [[both.queue], [both.queue]] == [list(found["depths"][side]) for side in Side]

    shown = [
        rf"{side} worker {re.escape(name)}: running, reads {both.queue}, \d+ s ago" for name, side, _, _ in expected
    ]
    shown += [rf"{side}: .*\d+ sent, .*\d+ finished, \d+ failed.*" for side in Side]
    shown += ["controller: none at work"]
    lines: list[str] = []

    def missing() -> list[str]:
        lines[:] = status(both, rabbitmq.management_url).splitlines()
        return [one for one in shown if not any(re.fullmatch(one, line) for line in lines)]

    # a worker that gets no processor time for some seconds is said to be silent
    wait_until(lambda: not missing(), within_s=30, what=f"the status has {shown}")


@pytest.mark.promise("redis to rabbitmq")
def test_a_destination_reaches_the_node_of_that_name_or_of_one_side(both: Rollout) -> None:
    control: Any = both.producer().control
    here, there = node(both, SOURCE), node(both, TARGET)
    require({here}, lambda: names(control.ping(destination=[here])))
    # asked for by its plain name
    require({there}, lambda: set(control.inspect(destination=[there]).ping() or ()))
    require({f"{there}/target"}, lambda: names(control.ping(destination=[f"{there}/target"])))
    assert control.ping(destination=[f"{there}/source"]) == []
    require({here, there}, lambda: names(control.ping(destination=[here, there])))
    assert {here, f"{there}/target"} == names(control.ping(limit=2, timeout=20)), "ends with the second reply"
    heard: list[dict[str, Any]] = []
    assert control.ping(callback=heard.append) == heard


def test_a_caller_s_connection_leads_to_its_broker(both: Rollout) -> None:
    app = both.producer()
    with Connection(both.addresses[SOURCE]) as connection:
        require({node(both, SOURCE)}, lambda: names(app.control.ping(connection=connection)))


def test_a_revoked_task_is_not_run_on_either_side(both: Rollout) -> None:
    """It waits for its time, on the broker or in a worker."""
    app = both.producer()
    labels = {side: uuid4().hex for side in Side}
    for side, label in labels.items():
        both.change(weight=float(side is TARGET))
        wait_until(lambda: _side_of_a_send(app) is side, within_s=30, what="the weight is followed")  # noqa: B023
        revoked = app.send_task(f"{TASKS}.note", [f"{label}-revoked"], countdown=5)
        app.send_task(f"{TASKS}.note", [f"{label}-other"], countdown=6)
        revoked.revoke()
    ran = both.await_ran([f"{label}-other" for label in labels.values()])
    assert not {f"{label}-revoked" for label in labels.values()} & {line["label"] for line in ran}


def _side_of_a_send(app: Any) -> Side:
    """Where a task goes that is never run: it has expired."""
    before = {side: app.repot.rollout.counters.of(side).sent for side in Side}
    app.send_task(f"{TASKS}.note", ["never"], expires=-60)
    return next(side for side in Side if app.repot.rollout.counters.of(side).sent > before[side])


def _known(app: Any, command: str) -> str:
    return json.dumps(getattr(app.control.inspect(timeout=2), command)())


@pytest.mark.promise("redis to rabbitmq")
def test_a_worker_hears_what_was_revoked_on_the_other_side_alone(both: Rollout) -> None:
    """The command reaches no worker of the target, only the store."""
    app = both.producer()
    revoked = uuid4().hex
    app.control.revoke(revoked, destination=["none/source"])
    require(len(Side), lambda: _known(app, "revoked").count(revoked))


def test_an_argument_of_a_command_may_be_a_keyword_of_broadcast(both: Rollout) -> None:
    """As Celery takes it; and a command without its argument is answered, not refused here."""
    app = both.producer()
    revoked = uuid4().hex
    replies = app.control.broadcast("revoke", task_id=revoked, reply=True, limit=2, timeout=20)
    assert {node(both, SOURCE), f"{node(both, TARGET)}/target"} == names(replies)
    require(len(Side), lambda: _known(app, "revoked").count(revoked))
    answers = app.control.broadcast("revoke", reply=True, limit=2, timeout=20)
    assert {"error"} == {key for reply in answers for answer in reply.values() for key in answer}


def test_a_worker_that_starts_later_runs_nothing_that_was_revoked(
    redis: Server, rabbitmq: Server, tmp_path: Path
) -> None:
    rollout = Rollout(redis.url, rabbitmq.url, redis, tmp_path)
    try:
        rollout.begin(1)
        app = rollout.producer()
        revoked = app.send_task(f"{TASKS}.note", ["revoked"])
        revoked.revoke()
        app.send_task(f"{TASKS}.note", ["other"])
        rollout.start_worker(TARGET)
        assert {"other"} == {line["label"] for line in rollout.await_ran(["other"])}
        wait_until(lambda: not rollout.waiting(TARGET), within_s=30, what="nothing is left")
    finally:
        rollout.stop()


def test_purge_empties_both_sides(redis: Server, rabbitmq: Server, tmp_path: Path) -> None:
    rollout = Rollout(redis.url, rabbitmq.url, redis, tmp_path)
    try:
        rollout.begin(0.5)
        app = rollout.producer()
        for _ in range(40):
            app.send_task(f"{TASKS}.note", ["never"])
        assert app.control.purge() == 40
        assert [*rollout.waiting(SOURCE), *rollout.waiting(TARGET)] == []
        assert app.control.discard_all() == 0
    finally:
        rollout.stop()


def test_a_side_that_is_away_hides_nothing_of_the_other(away: Rollout) -> None:
    worker = node(away, SOURCE)
    answer = require_pinged(away, SOURCE, worker)
    assert "the target of the rollout shop did not take the command ping" in answer.stderr
    assert "planted" not in answer.stdout + answer.stderr
    # a command without answers
    away.producer().control.broadcast("heartbeat")
    with pytest.raises(OperationalError):
        away.producer().control.purge()


def test_the_other_side_answers_where_the_own_broker_is_away(away: Rollout) -> None:
    """A program of the target, which is away."""
    answer = require_pinged(away, TARGET, f"{node(away, SOURCE)}/source")
    assert "the target of the rollout shop did not take the command ping" in answer.stderr
    with pytest.raises(OperationalError):
        away.producer(side=TARGET).control.broadcast("heartbeat")


def test_both_brokers_are_away(redis: Server, tmp_path: Path) -> None:
    urls = [f"amqp://me:planted@{LOOPBACK}:{free_port()}//" for _ in Side]
    rollout = Rollout(urls[0], urls[1], redis, tmp_path)
    try:
        answer = celery(rollout, "inspect", "ping")
        assert answer.returncode != 0
        assert "planted" not in answer.stdout + answer.stderr
    finally:
        rollout.stop()


@pytest.mark.parametrize("kind", ["redis", "rabbitmq"])
def test_a_target_that_swallows_everything_costs_a_bounded_time(
    request: pytest.FixtureRequest,
    kind: str,
    redis: Server,
    toxiproxy: Server,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is left after the time for an answer and that for sending; its thread may wait for much longer."""
    server: Server = request.getfixturevalue(kind)
    proxy = Proxy.create(toxiproxy.url, f"target-{uuid4()}", server.port)
    rollout = Rollout(f"{redis.url.removesuffix('/0')}/5", server.url_at(proxy.port), redis, tmp_path)
    try:
        rollout.begin(0)
        rollout.start_worker(SOURCE, 1)
        app = rollout.producer()
        with proxy.with_toxic("timeout", ["downstream"], {"timeout": 0}):
            # workers of other tests' rollouts listen on the same database
            require({node(rollout, SOURCE)}, lambda: {one for one in names(app.control.ping()) if rollout.token in one})
        assert "did not take the command ping: OperationalError: no answer within 6 s" in caplog.text
    finally:
        rollout.stop()
        proxy.delete()


def test_a_revocation_is_not_lost_with_the_store(away: Rollout, caplog: pytest.LogCaptureFixture) -> None:
    """The workers that run hear of it; the log says that others do not."""
    app = away.producer(lease_store=f"redis://{LOOPBACK}:{free_port()}/0", follows=False)
    revoked = uuid4().hex
    app.control.revoke(revoked)
    require(True, lambda: revoked in _known(app, "revoked"))
    assert "none that starts later" in caplog.text


@pytest.mark.parametrize("side", list(Side))
def test_the_sidecar_counts_both_sides_of_a_rollout(both: Rollout, rabbitmq: Server, side: Side) -> None:
    directory = both.settings.status_dir
    assert directory is not None
    status = status_file.read(status_file.path_of(directory, node(both, side)))
    settings = both.settings.replace(rollout_side=side.value, management_url=rabbitmq.management_url)
    expected = {str(settings.broker_url), str(settings.rollout_target)}
    with closing(QueueCounter(settings, 5)) as counter:
        # RabbitMQ's statistics know a new queue after some seconds
        wait_until(
            lambda: expected == {one.broker for one in counter.count(status.link) if one.depth is not None},
            within_s=20,
            what="both sides are counted",
        )


class OwnControl(Control):
    """An application's own class."""

    def greet(self) -> Any:
        """Ask."""
        return self.ping(timeout=2)


def test_an_application_s_own_class_is_kept(both: Rollout) -> None:
    app = both.producer(Celery("own", control=OwnControl, set_as_current=False))
    require(2, lambda: len(app.control.greet()))
    configure(app, both.settings.replace(rollout="", rollout_target=None), Role.CLIENT)
    assert type(app.control) is OwnControl


def test_without_the_rollout_control_is_celery_s(both: Rollout) -> None:
    app = both.producer()
    assert pickle.dumps(app)
    configure(app, both.settings.replace(rollout="", rollout_target=None), Role.CLIENT)
    assert type(app.control) is Control
    require({node(both, SOURCE)}, lambda: names(app.control.ping()))


def test_workers_elect_one_of_their_own_side(away: Rollout, caplog: pytest.LogCaptureFixture) -> None:
    """The command is not sent to the other side, which would elect one as well."""
    away.producer().control.election(uuid4().hex, "task")
    assert "election" not in caplog.text
