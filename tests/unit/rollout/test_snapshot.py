"""What a page and a report are given of a rollout, on a store in a file; no broker is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from repot.config import ExplicitSettings
from repot.rollout.judge import Finding, Judgement, Verdict
from repot.rollout.observations import Recorder
from repot.rollout.phases import Observed, Phase, Plan
from repot.rollout.rollout import Rollout, open_rollout
from repot.rollout.snapshot import MOST_TASKS, snapshot
from repot.rollout.steps import counts_at_step
from repot.routing.record import Change
from repot.routing.side import Side, Weights
from support.databases import with_tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.databases import FileDatabase

NAME = "friday"
PLAN = Plan(steps=(0.25, 1.0), bake_s=300.0, patience_s=60.0, queues=("orders",))
SLOW = Finding("run time shop.charge", Verdict.FAIL, "run time shop.charge: slower")


class Silent:
    """A side whose broker says nothing of its queues."""

    def depths(self) -> None:
        return None


class Led:
    """A rollout, and what its controller and its workers write."""

    def __init__(self, rollout: Rollout) -> None:
        self.rollout, self.numbers = rollout, dict.fromkeys(Side, 0)
        self.recorder = Recorder(
            rollout.observations,
            rollout.tally,
            dict.fromkeys(Side, Silent()),  # type: ignore[arg-type]
            lambda counts: counts_at_step(rollout.store, rollout.records.history(NAME), counts),
        )

    def change(self, phase: Phase, weight: float | None = None, why: str = "a test") -> None:
        weights = None if weight is None else Weights(weight)
        self.rollout.records.change(self.rollout.record(), Change("ann", why, phase=phase, weights=weights))

    def begin_step(self, weight: float) -> None:
        """Go to a step, and look for the first time."""
        self.change(Phase.CANARY, weight)
        counts = {side: self.rollout.tally.counts(side) for side in Side}
        self.rollout.store.first_counts(str(self.rollout.record().generation), counts)

    def count(self, side: Side, **counts: int) -> None:
        self.numbers[side] += 1
        fields = {name.replace("__", ":").replace("_of_", ":shop."): count for name, count in counts.items()}
        self.rollout.tally.add(side, "a worker", self.numbers[side], fields, None)

    def look(self, *findings: Finding, **seen: Any) -> None:
        judgement = Judgement(findings) if findings else None
        self.recorder.record(self.rollout.record(), Observed(judgement=judgement, **seen))

    def shown(self) -> dict[str, Any]:
        return snapshot(self.rollout, {})


@pytest.fixture
def led(sqlite: FileDatabase) -> Iterator[Led]:
    settings = ExplicitSettings(
        rollout=NAME,
        broker_url="redis://source.invalid:6379/0",
        rollout_target="amqp://target.invalid:5672//",
        lease_store=with_tables(sqlite).url,
        queue_names=("orders",),
    )
    with open_rollout(NAME, settings) as rollout:
        rollout.begin(PLAN, "ann")
        yield Led(rollout)


def waits(count: int, place: int = 0) -> dict[str, int]:
    return {f"queue_wait__{place}_of_charge": count, "outcome__received_of_charge": count}


def test_durations_are_those_of_the_step_in_the_table_and_in_the_chart(led: Led) -> None:
    led.count(Side.TARGET, **waits(100, place=3))
    led.begin_step(0.25)
    led.count(Side.TARGET, **waits(100, place=0))
    led.look()
    for _ in range(2):
        # a second look at the page does not begin a new time
        assert led.shown()["sides"][Side.TARGET]["queue_wait_p95_s"] == 1
    (point,) = led.rollout.observations.series()
    assert point["target"]["queue_wait_p95_s"] == 1


def test_without_a_step_durations_are_those_since_the_rollout_began(led: Led) -> None:
    led.count(Side.SOURCE, **waits(10, place=3))
    shown = led.shown()
    assert (shown["step"], shown["sides"][Side.SOURCE]["queue_wait_p95_s"]) == (None, 60)


def test_what_was_before_a_step_that_no_controller_has_seen_is_none_of_it(led: Led) -> None:
    led.count(Side.SOURCE, **waits(10, place=3))
    led.change(Phase.CANARY, 0.25)
    assert led.shown()["sides"][Side.SOURCE]["queue_wait_p95_s"] is None


def test_durations_of_a_rollout_that_is_over_are_those_of_the_last_point(led: Led) -> None:
    led.begin_step(1.0)
    led.count(Side.TARGET, **waits(100, place=0))
    led.look()
    led.change(Phase.DONE)
    led.count(Side.TARGET, **waits(1000, place=5))
    assert led.shown()["sides"][Side.TARGET]["queue_wait_p95_s"] == 1


def test_a_pause_is_no_new_step_and_has_its_own_age(led: Led) -> None:
    led.begin_step(0.25)
    step = led.rollout.record()
    led.change(Phase.PAUSED)
    shown = led.shown()
    assert (0.25, step.generation, step.updated_at) == tuple(
        shown["step"][name] for name in ("weight", "generation", "began_at")
    )
    assert shown["step"]["age_s"] >= shown["phase_age_s"] >= 0
    assert (shown["bake_s"], shown["patience_s"]) == (300.0, 60.0)
    led.change(Phase.CANARY)
    assert step.generation == led.shown()["step"]["generation"]


def test_a_phase_lasts_longer_than_its_last_change(led: Led) -> None:
    led.begin_step(0.25)
    began_at = led.rollout.record().updated_at
    led.change(Phase.CANARY, why="the plan")
    led.begin_step(1.0)
    shown = led.shown()
    assert shown["at"] - began_at == pytest.approx(shown["phase_age_s"])
    assert led.rollout.record().updated_at == pytest.approx(shown["step"]["began_at"])


def test_the_findings_that_aborted_a_step_stay(led: Led) -> None:
    led.begin_step(0.25)
    led.look(SLOW, faults=("the target does not answer",))
    led.change(Phase.ABORT, 0.0)
    led.look(left=("the target has messages",))
    for phase in (Phase.ABORT, Phase.ABORTED):
        led.change(phase)
        shown = led.shown()
        assert [[SLOW.criterion, "fail", SLOW.reason]] == shown["judged"]["findings"]
        assert (shown["judged"]["is_now"], shown["judged"]["faults"]) == (False, ["the target does not answer"])
        assert shown["step"]["weight"] == 0.25


def test_what_was_judged_before_a_step_says_nothing_of_it(led: Led) -> None:
    assert led.shown()["judged"] is None
    led.begin_step(0.25)
    assert led.shown()["judged"] is None
    led.look(SLOW)
    assert led.shown()["judged"]["is_now"]
    led.change(Phase.PAUSED)
    assert led.shown()["judged"]["is_now"]
    led.change(Phase.CANARY, 1.0)
    assert led.shown()["judged"] is None


def test_tasks_are_counted_by_side_in_the_step(led: Led) -> None:
    led.count(Side.TARGET, outcome__failed_of_charge=7, outcome__received_of_charge=7)
    led.begin_step(0.25)
    led.count(
        Side.TARGET,
        outcome__received_of_charge=11,
        outcome__succeeded_of_charge=8,
        outcome__failed_of_charge=2,
        outcome__retried_of_charge=1,
        units__tried_of_charge=10,
        units_runtime__0_of_charge=8,
        units_runtime__8_of_charge=2,
        units__delivered_of_charge=10,
        units_queue_wait__0_of_charge=10,
    )
    led.count(Side.SOURCE, outcome__received_of_mail=3, outcome__succeeded_of_mail=3)
    charge, mail = led.shown()["tasks"]["busiest"]
    assert (charge["task"], mail["task"]) == ("shop.charge", "shop.mail")
    assert charge["target"] == {
        "finished": 10,
        "failed": 2,
        "retried": 1,
        "runtime_p50_s": 1.0,
        "runtime_p90_s": 2.0,
        "queue_wait_p90_s": 1.0,
    }
    assert (mail["source"]["finished"], mail["source"]["runtime_p50_s"]) == (3, None)
    assert mail["target"]["finished"] == 0


def test_only_the_busiest_tasks_are_shown(led: Led) -> None:
    led.begin_step(0.25)
    for number in range(MOST_TASKS + 3):
        led.count(
            Side.SOURCE,
            **{f"outcome__received_of_{number}": number + 1, f"outcome__succeeded_of_{number}": number + 1},
        )
    found = led.shown()["tasks"]
    assert (len(found["busiest"]), found["more"]) == (MOST_TASKS, 3)
    assert f"shop.{MOST_TASKS + 2}" == found["busiest"][0]["task"]


def test_what_was_written_after_the_clock_was_read_is_0_s_old(led: Led, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal showed `-0 s ago`."""
    led.begin_step(0.25)
    led.look(SLOW)
    read_at = led.rollout.observations.looks.last()
    assert read_at
    monkeypatch.setattr(led.rollout.tally, "now", lambda: read_at.at - 0.25)
    assert led.shown()["look"]["age_s"] == 0
