"""A rollout's controller on real brokers and a real store; the counts are reported as workers report them."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from click.testing import CliRunner
from redis import Redis

from repot.cli.main import main
from repot.config import ExplicitSettings, inherited_environment
from repot.errors import AlreadyControlled, RolloutConflict
from repot.rollout import reporting as reporting_module
from repot.rollout import side_watch
from repot.rollout import watch as watch_module
from repot.rollout.phases import Phase, Plan, abort, drain
from repot.rollout.rollout import Rollout, open_rollout
from repot.routing.record import Change
from repot.routing.side import Side
from repot.routing.tally import Reporter, WorkerState
from repot.testbed import redis_server
from repot.waiting import wait_until
from support import forked
from support.databases import with_tables
from support.moves import Way, consume, declare, read, start_killed, task
from support.reports import HEALTHY, Reports, between, environment, plan_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from click.testing import Result

    from repot.rollout.phases import Observed
    from repot.routing.record import RolloutRecord
    from repot.testbed import Server

PASSWORD = "planted-password"

IN_EACH_STORE = pytest.mark.parametrize("settings", ["redis-rabbitmq", "redis-rabbitmq-postgresql"], indirect=True)


@pytest.fixture
def settings(request: pytest.FixtureRequest, redis: Server) -> ExplicitSettings:
    """`SOURCE-TARGET`, or `SOURCE-TARGET-DATABASE` with the lease store."""
    way = getattr(request, "param", "redis-rabbitmq")
    source, target, *databases = map(request.getfixturevalue, way.split("-"))
    return between(source, target, with_tables(databases[0]) if databases else redis)


@pytest.fixture
def rollout(settings: ExplicitSettings) -> Iterator[Rollout]:
    with open_rollout(settings.rollout, settings) as opened:
        yield opened


@pytest.fixture
def reports(rollout: Rollout) -> Reports:
    return Reports(rollout, rollout.settings.queue_names[0])


def lead(rollout: Rollout, plan: Plan, stop: Event | None = None, show: Any = lambda *_: None) -> RolloutRecord:
    rollout.begin(plan, "ann")
    return rollout.controller().run(stop or Event(), show)


def states(rollout: Rollout) -> list[tuple[str, float]]:
    return [(one.phase, one.weights.default) for one in rollout.records.history(rollout.name)]


ALL_STEPS = [("prepare", 0.0), ("canary", 0.5), ("canary", 1.0), ("drain", 1.0), ("done", 1.0)]


@pytest.mark.promise("redis-rabbitmq")
@pytest.mark.parametrize("settings", ["redis-rabbitmq", "rabbitmq-redis"], indirect=True)
def test_a_healthy_rollout_takes_every_step_and_ends_when_the_source_is_empty(
    rollout: Rollout, reports: Reports
) -> None:
    with reports.each_second(**HEALTHY):
        ended = lead(rollout, plan_of(rollout))
    assert ended.phase == Phase.DONE
    assert states(rollout) == ALL_STEPS


@pytest.mark.parametrize(
    ("phase", "side", "way"),
    [
        (Phase.DRAIN, Side.SOURCE, "`repot move start --dlq` carries them"),
        (Phase.ABORT, Side.TARGET, "`repot move start --dlq` from there brings them back"),
    ],
)
def test_dead_letters_that_stay_on_a_side_are_in_the_last_entry_of_the_history(
    rollout: Rollout, settings: ExplicitSettings, rabbitmq: Server, phase: Phase, side: Side, way: str
) -> None:
    """Nothing looks at them there."""
    rollout.begin(plan_of(rollout), "ann")
    queue = rollout.settings.dead_letters_of(rollout.settings.queue_names[0])
    declare(rabbitmq, queue)
    with closing(rollout.watch(plan_of(rollout)).sides[side].connect()) as broker:
        assert all(one.is_confirmed for one in broker.publish(queue, [task(0), task(1)]))
    rollout.change(lambda _: Change("ann", "enough", phase=phase))
    ended = rollout.controller().run(Event())
    said = f"2 dead letters stay on the {side} ({queue} 2): `repot dlq list --broker {side}` reads them, and {way}"
    assert said in ended.why
    listed = CliRunner().invoke(main, ["dlq", "stats", "--broker", str(side)], env=environment(settings))
    assert queue in listed.output


@pytest.mark.promise
def test_the_source_is_not_empty_while_a_message_waits_there(rollout: Rollout, reports: Reports) -> None:
    stop = Event()
    put(rollout, Side.SOURCE)
    drains_since: list[float] = []
    left: list[str] = []

    def show(record: RolloutRecord, seen: Observed) -> None:
        if record.phase == Phase.DRAIN:
            left.extend(seen.left)
            drains_since.append(monotonic())
            if monotonic() - drains_since[0] > 6:
                stop.set()

    with reports.each_second(**HEALTHY):
        assert lead(rollout, plan_of(rollout), stop, show).phase == Phase.DRAIN
        assert {f"the source has messages of {rollout.settings.queue_names[0]!r}: waiting"} == {*left}
        take_all(rollout, Side.SOURCE)
        assert rollout.controller().run(Event()).phase == Phase.DONE


@pytest.mark.promise("rabbitmq-redis")
@pytest.mark.parametrize("settings", ["redis-rabbitmq", "rabbitmq-redis"], indirect=True)
def test_a_failing_target_is_aborted_and_the_rollout_ends_when_it_is_empty(rollout: Rollout, reports: Reports) -> None:
    put(rollout, Side.TARGET)
    stop = Event()

    def show(record: RolloutRecord, _: Observed) -> None:
        if record.phase == Phase.ABORT:
            stop.set()

    failing = {"source": {"succeeded": 60}, "target": {"succeeded": 40, "failed": 20}}
    with reports.each_second(**failing):
        found = lead(rollout, plan_of(rollout), stop, show)
        assert (found.phase, found.weights.default, found.gather) == (Phase.ABORT, 0.0, True)
        assert "failed" in found.why
        assert "on the target" in found.why
        take_all(rollout, Side.TARGET)
        assert rollout.controller().run(Event()).phase == Phase.ABORTED
    assert states(rollout) == [("prepare", 0.0), ("canary", 0.5), ("abort", 0.0), ("aborted", 0.0)]


@pytest.mark.promise("rabbitmq-redis")
@pytest.mark.parametrize("settings", ["redis-rabbitmq", "rabbitmq-redis"], indirect=True)
def test_what_waits_on_the_target_of_an_abort_is_moved_back_on_request(rollout: Rollout, reports: Reports) -> None:
    """No worker of the target is there to finish it."""
    for _ in range(30):
        put(rollout, Side.TARGET)
    failing = {"source": {"succeeded": 60}, "target": {"succeeded": 40, "failed": 20}}
    with reports.each_second(**failing):
        found = lead(rollout, plan_of(rollout, moves=True))
    assert found.phase == Phase.ABORTED
    assert "30 moved to the other side" in found.why
    with closing(rollout.watch(plan_of(rollout)).sides[Side.SOURCE].connect()) as broker:
        assert len(list(broker.scan(rollout.settings.queue_names[0]))) == 30  # type: ignore[attr-defined]


@pytest.mark.promise
def test_a_move_that_was_killed_with_its_last_window_open_goes_on(
    rollout: Rollout, redis: Server, rabbitmq: Server
) -> None:
    """Nothing waits: all of the backlog is in the journal of the move."""
    queue, plan = rollout.settings.queue_names[0], plan_of(rollout, moves=True)
    for _ in range(30):
        put(rollout, Side.SOURCE)
    name = rollout.watch(plan).carrying.order(Side.SOURCE).name
    path = Way(redis, rabbitmq, redis, queue, queue, name)
    with start_killed(path, "opened", window=1, lease_s=1) as mover:
        mover.communicate()
    assert mover.returncode == -signal.SIGKILL
    rollout.begin(plan, "ann")
    rollout.change(lambda _: drain("ann", "enough"))
    stop, began_at = Event(), monotonic()

    def show(*_: Any) -> None:
        if monotonic() - began_at > 60:
            stop.set()

    ended = rollout.controller().run(stop, show)
    assert ended.phase == Phase.DONE
    assert len(read(rabbitmq, queue)) == 30


@pytest.mark.parametrize("settings", ["redis-rabbitmq"], indirect=True)
def test_an_abort_out_of_a_drain_leaves_nothing_in_the_journal_of_its_move(
    rollout: Rollout, redis: Server, rabbitmq: Server
) -> None:
    """The mover was killed with a window open: its messages are in no queue of either side."""
    queue, plan = rollout.settings.queue_names[0], plan_of(rollout, moves=True)
    for _ in range(30):
        put(rollout, Side.SOURCE)
    name = rollout.watch(plan).carrying.order(Side.SOURCE).name
    with start_killed(Way(redis, rabbitmq, redis, queue, queue, name), "opened", window=1, lease_s=1) as mover:
        mover.communicate()
    assert mover.returncode == -signal.SIGKILL
    rollout.begin(plan, "ann")
    rollout.change(lambda _: drain("ann", "enough"))
    rollout.change(lambda _: abort("ann", "not now"))
    assert rollout.controller().run(Event()).phase == Phase.ABORTED
    assert len(read(redis, queue)) == 30
    assert read(rabbitmq, queue) == []


def put(rollout: Rollout, side: Side) -> None:
    with closing(rollout.watch(plan_of(rollout)).sides[side].connect()) as broker:
        assert all(one.is_confirmed for one in broker.publish(rollout.settings.queue_names[0], [task(1)]))


def take_all(rollout: Rollout, side: Side) -> None:
    with closing(rollout.watch(plan_of(rollout)).sides[side].connect()) as broker:
        consume(broker, rollout.settings.queue_names[0])


@pytest.mark.promise
def test_a_starved_step_never_passes_and_asks_a_person(rollout: Rollout, reports: Reports) -> None:
    stop = Event()

    def show(record: RolloutRecord, _: Observed) -> None:
        if record.phase == Phase.PAUSED:
            stop.set()

    with reports.each_second(source={"succeeded": 60}):
        found = lead(rollout, plan_of(rollout, patience_s=4.0), stop, show)
    assert (found.phase, found.weights.default) == (Phase.PAUSED, 0.5)
    assert "a person must decide: the target finished 0 of 50 runs" in found.why


def test_a_pause_is_no_new_step(rollout: Rollout, reports: Reports, repot: Callable[..., Result]) -> None:
    """What the target did before a pause counts after it."""
    with reports.each_second(**HEALTHY):
        stop = Event()
        lead(rollout, plan_of(rollout, bake_s=60), stop, lambda *seen: stop.set() if is_judged(*seen) else None)
    assert "judge: pass: failed: 0 of" in repot(rollout.settings, "status", rollout.name).output
    kept = rollout.store.evidence()
    assert kept is not None
    assert json.loads(kept)[0].startswith(f"{rollout.record().generation} ")
    # a controller of another release may have been at work
    rollout.store.put_evidence("of another release")
    wait = rollout.record()
    rollout.records.change(wait, Change("ann", "look", phase=Phase.PAUSED))
    rollout.change(lambda _: Change("ann", "go on", phase=Phase.CANARY))
    looked: list[Observed] = []
    stop = Event()

    def show(_: RolloutRecord, seen: Observed) -> None:
        looked.append(seen)
        stop.set()

    reports.send()
    rollout.controller().run(stop, show)
    judgement = looked[0].judgement
    assert judgement is not None
    assert judgement.verdict == "pass"


def is_judged(record: RolloutRecord, seen: Observed) -> bool:
    return record.phase == Phase.CANARY and seen.judgement is not None and seen.judgement.verdict == "pass"


@pytest.mark.promise("redis-rabbitmq-postgresql")
@IN_EACH_STORE
def test_one_controller_at_a_time_and_a_frozen_one_changes_nothing_afterwards(rollout: Rollout) -> None:
    rollout.begin(plan_of(rollout), "ann")
    frozen = rollout.store.hold("frozen", 60.0)
    with pytest.raises(AlreadyControlled, match="another controller is at work: frozen"):
        rollout.controller().run(Event())
    assert frozen == rollout.store.hold("frozen", 0.2)
    before = rollout.record()
    tokens = []

    def acquired() -> bool:
        try:
            tokens.append(rollout.store.hold("second", 30.0))
        except AlreadyControlled:
            return False
        return True

    wait_until(acquired, within_s=30, what="the lease of the frozen one has ended")
    assert tokens[0] > frozen
    now = rollout.records.change(before, abort("second", "it is its turn"), token=tokens[0])
    with pytest.raises(RolloutConflict, match="later than"):
        rollout.records.change(now, abort("frozen", "late"), token=frozen)
    assert rollout.record().who == "second"
    rollout.store.release("second")


def test_a_target_that_goes_away_is_an_abort(redis: Server) -> None:
    with redis_server() as target:
        settings = between(redis, target, redis)
        with open_rollout(settings.rollout, settings) as rollout:
            reports = Reports(rollout, settings.queue_names[0])
            stop = Event()
            gone_at: list[float] = []

            def show(record: RolloutRecord, _: Observed) -> None:
                if record.phase == Phase.CANARY and not gone_at:
                    target.process.stop()
                    gone_at.append(monotonic())
                if record.phase == Phase.ABORT:
                    stop.set()

            with reports.each_second(source={"succeeded": 60}):
                found = lead(rollout, plan_of(rollout, bake_s=60), stop, show)
            assert "the target does not answer" in found.why
            assert monotonic() - gone_at[0] < 20


def test_workers_that_connect_again_are_no_fault_and_workers_that_stay_away_are(
    rollout: Rollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that starts again takes its workers away for a moment."""
    for module in (watch_module, reporting_module):
        monkeypatch.setattr(module, "SILENT_S", 60)
    rollout.begin(plan_of(rollout), "ann")
    queue = rollout.settings.queue_names[0]
    reporter = Reporter(rollout.tally, Side.TARGET, uuid4().hex, dict)

    def faults(phase: str, *queues: str) -> tuple[str, ...]:
        reporter.report(WorkerState("celery@target", Side.TARGET, phase, queues))
        return watch.look(canary, canary).faults

    canary = rollout.change(lambda _: Change("ann", "go", phase=Phase.CANARY))
    with closing(rollout.watch(plan_of(rollout))) as watch:
        assert faults("running", queue) == ()
        assert faults("connecting") == ()
        assert faults("running", queue) == ()
        for module in (watch_module, reporting_module):
            monkeypatch.setattr(module, "SILENT_S", 0.5)
        found = wait_until(lambda: faults("connecting"), within_s=30, what="the workers are given up", poll_s=0.2)
        assert f"no worker of the target reports that it reads {queue!r}" in found[0]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that does not answer is gone after the second look."""
    monkeypatch.setattr(side_watch, "_GONE_S", 0.0)


@pytest.mark.usefixtures("hasty")
def test_a_management_api_that_is_away_is_no_fault_of_the_target(settings: ExplicitSettings) -> None:
    """Messages do not go through it; what its counts decide waits."""
    away = settings.replace(management_url="http://127.0.0.1:1")
    with open_rollout(away.rollout, away) as rollout, closing(rollout.watch(plan_of(rollout))) as watch:
        target = watch.sides[Side.TARGET]
        assert [target.faults(), target.faults()] == [[], []]
        assert target.is_empty() is None
        (why,) = target.left
        assert "whether the target is empty is unknown: RabbitMQ's management API" in why


@pytest.mark.usefixtures("hasty")
def test_a_rabbitmq_that_is_away_is_a_fault(settings: ExplicitSettings) -> None:
    away = settings.replace(management_url="http://127.0.0.1:1", rollout_target="amqp://127.0.0.1:1")
    with open_rollout(away.rollout, away) as rollout, closing(rollout.watch(plan_of(rollout))) as watch:
        target = watch.sides[Side.TARGET]
        assert "the target does not answer" in [*target.faults(), *target.faults()][-1]


def test_a_queue_that_is_gone_is_a_fault(settings: ExplicitSettings) -> None:
    with open_rollout(settings.rollout, settings) as rollout:
        plan = replace(plan_of(rollout), queues=(*settings.queue_names, "gone"))
        with closing(rollout.watch(plan)) as watch:
            assert watch.sides[Side.TARGET].faults() == ["the target has no queue 'gone'"]


def test_a_rollout_waits_for_queues_and_workers_of_the_target(
    settings: ExplicitSettings, repot: Callable[..., Result]
) -> None:
    name = settings.rollout
    missing = settings.replace(queue_names=("nowhere",))
    result = repot(missing, "plan", name)
    assert result.exit_code == 4, result.output
    assert "no worker of the target reports that it reads 'nowhere'" in result.stderr
    with open_rollout(name, settings) as rollout:
        stop = Event()
        seen: list[Observed] = []

        def show(_: RolloutRecord, now: Observed) -> None:
            seen.append(now)
            stop.set()

        assert lead(rollout, plan_of(rollout), stop, show).phase == Phase.PREPARE
        assert any("no worker of the target" in one for one in seen[0].obstacles)


@pytest.fixture
def repot() -> Callable[..., Result]:
    def run(settings: ExplicitSettings, *words: str) -> Result:
        return CliRunner().invoke(main, ["rollout", *words], env=environment(settings))

    return run


@pytest.mark.promise("redis-rabbitmq-postgresql")
@IN_EACH_STORE
def test_an_operator_leads_by_hand(rollout: Rollout, settings: ExplicitSettings, repot: Callable[..., Result]) -> None:
    name = rollout.name
    rollout.begin(plan_of(rollout, manual=True), "ann")

    def said(*words: str, code: int = 0) -> str:
        result = repot(settings, *words)
        assert code == result.exit_code, result.output
        return result.output

    assert "no worker of the target reports that it reads" in said("promote", name, code=4)
    assert rollout.record().phase == "prepare"
    assert "canary at 50%" in said("promote", name, "--force", "--why", "the target looks good")
    assert "paused at 50%" in said("pause", name)
    assert "canary at 50%" in said("resume", name)
    assert "canary at 100%" in said("promote", name)
    assert "abort at 0%" in said("abort", name, "--why", "wrong day")
    assert "is in the phase 'abort'" in said("promote", name, code=5)
    assert "state what to change" in said("change", name, code=2)
    assert "--quiet 0 -> 3, --drain finish -> move: too slow" in said(
        "change", name, "--drain", "move", "--quiet", "3s", "--why", "too slow"
    )
    assert "the plan is so already" in said("change", name, "--quiet", "3s")
    assert rollout.store.plan().moves
    # it goes on by its plan, and its end is no success
    resumed = said("resume", name, "--execute", code=10)
    assert "was aborted, and all work goes to" in resumed
    assert f"`repot rollout promote {name}` begins again" in " ".join(resumed.split())
    assert "no worker of the target reports that it reads" in said("promote", name, code=4)
    assert "canary at 50%" in said("promote", name, "--force")
    assert "drain at 100%" in said("finish", name)
    lines = json.loads(said("history", name, "--json"))
    assert [one["phase"] for one in lines] == [
        "prepare",
        "canary",
        "paused",
        "canary",
        "canary",
        "abort",
        "abort",
        "aborted",
        "canary",
        "drain",
    ]
    assert lines[1]["why"] == "the target looks good"
    status = json.loads(said("status", name, "--json"))
    assert (status["phase"], status["weight"]) == ("drain", 1.0)
    assert "there is no rollout 'other'" in said("status", "other", code=1)


def test_no_password_is_kept_or_shown(settings: ExplicitSettings, redis: Server, repot: Callable[..., Result]) -> None:
    """The target's address has a password; RabbitMQ and Redis without authentication take any."""
    target = settings.rollout_target
    assert target is not None
    secret = settings.replace(rollout_target=f"amqp://ann:{PASSWORD}@127.0.0.1:1/shop")
    with open_rollout(secret.rollout, secret) as rollout:
        rollout.begin(plan_of(rollout), "ann")
    shown = [repot(secret, word, secret.rollout) for word in ("status", "plan", "history")]
    assert "amqp://ann:" in shown[0].output
    assert all(PASSWORD not in one.output for one in shown)
    with Redis.from_url(redis.url, decode_responses=True) as client:
        read = {"hash": client.hgetall, "string": client.get, "list": lambda key: client.lrange(key, 0, -1)}
        kept = [read[client.type(key)](key) for key in client.scan_iter(f"*{secret.rollout}*")]
    assert kept
    assert PASSWORD not in str(kept)


@IN_EACH_STORE
def test_a_controller_that_is_killed_changes_no_outcome(rollout: Rollout, reports: Reports) -> None:
    """Each start goes on where the last one was killed; to see the source empty for seconds, the last one must live."""
    chance = random.Random(11)  # noqa: S311 - instants
    words = ["--steps", "50,100", "--bake", "2s", "--samples", "50", "--synthetic", "", "--quiet", "0s", "--execute"]
    # other tests have queues on the same brokers
    words += ["--queue", rollout.settings.queue_names[0]]
    command = [sys.executable, "-m", "repot", "rollout", "start", rollout.name, *words]
    variables = inherited_environment(without=("WORKER_",)) | environment(rollout.settings)  # type: ignore[arg-type]
    # or one of them could see it
    put(rollout, Side.SOURCE)
    with reports.each_second(**HEALTHY):
        for _ in range(4):
            with forked.start(command, env=variables, stdout=-1, stderr=-1) as controller:
                # it has looked once
                assert controller.stderr is not None
                controller.stderr.readline()
                with pytest.raises(subprocess.TimeoutExpired):
                    controller.wait(chance.uniform(0, 2))
                controller.kill()
        take_all(rollout, Side.SOURCE)
        assert rollout.controller().run(Event()).phase == Phase.DONE
    assert states(rollout) == ALL_STEPS
