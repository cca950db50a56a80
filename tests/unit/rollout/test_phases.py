"""What leads from one phase of a rollout to the next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from repot.errors import RecordUnreadable
from repot.rollout.judge import Criteria, Finding, Judgement, Verdict
from repot.rollout.phases import CONTROLLER, Observed, Phase, Plan, abort, next_change, promote
from repot.rollout.steps import waiting_step
from repot.routing.looks import LastLook
from repot.routing.record import RolloutRecord
from repot.routing.side import Weights

PLAN = Plan(steps=(0.01, 0.5, 1.0), bake_s=60, patience_s=600, queues=("orders",))
PASSED = Judgement((Finding("samples", Verdict.PASS, "enough"), Finding("failed", Verdict.PASS, "failed: 0 of 100")))
FAILED = Judgement((*PASSED.findings, Finding("redelivered", Verdict.FAIL, "redelivered: 30 of 100")))
STARVED = Judgement((Finding("samples", Verdict.INCONCLUSIVE, "the target finished 3 of 50 runs"),))


def record(phase: Phase, weight: float = 0.0, **changes: Any) -> RolloutRecord:
    fields = {"gather": False, "who": "ann", "why": "", "updated_at": 0.0, **changes}
    return RolloutRecord("friday", "redis://a", "amqp://b", phase, 1, Weights(weight), **fields)


def test_prepare_waits_for_the_target_and_then_takes_the_first_step() -> None:
    assert next_change(record(Phase.PREPARE), PLAN, Observed(obstacles=("no queue 'orders'",))) is None
    change = next_change(record(Phase.PREPARE), PLAN, Observed())
    assert change is not None
    assert (Phase.CANARY, Weights(0.01), False) == (change.phase, change.weights, change.gather)


def test_a_passed_step_leads_to_the_next_one_after_its_time() -> None:
    now = record(Phase.CANARY, 0.01)
    assert next_change(now, PLAN, Observed(step_age_s=59, judgement=PASSED)) is None
    change = next_change(now, PLAN, Observed(step_age_s=60, judgement=PASSED))
    assert change is not None
    assert (Phase.CANARY, Weights(0.5), CONTROLLER) == (change.phase, change.weights, change.who)


def test_after_the_last_step_the_source_becomes_empty_and_then_the_rollout_is_done() -> None:
    change = next_change(record(Phase.CANARY, 1.0), PLAN, Observed(step_age_s=60, judgement=PASSED))
    assert change is not None
    assert (Phase.DRAIN, Weights(1.0), True) == (change.phase, change.weights, change.gather)
    drains = record(Phase.DRAIN, 1.0)
    assert next_change(drains, PLAN, Observed(is_empty=None)) is None
    assert next_change(drains, PLAN, Observed(is_empty=False)) is None
    ended = next_change(drains, PLAN, Observed(is_empty=True))
    assert ended is not None
    assert ended.phase == Phase.DONE


MANUAL = replace(PLAN, manual=True)
CANARY = [record(Phase.PREPARE), record(Phase.CANARY, 0.5, updated_at=100.0)]
#: A pause is no new step: it began at 100.
RESUMED = [*CANARY, record(Phase.PAUSED, 0.5, updated_at=130.0), record(Phase.CANARY, 0.5, updated_at=155.0)]


def look(*verdicts: Verdict, generation: int = 1, obstacles: tuple[str, ...] = ()) -> LastLook:
    return LastLook(160.0, generation, tuple(("one", str(verdict), "why") for verdict in verdicts), obstacles)


@pytest.mark.parametrize(
    ("history", "plan", "seen", "now", "waits"),
    [
        (CANARY, MANUAL, look(Verdict.PASS, Verdict.PASS), 160.0, True),
        (CANARY, MANUAL, look(Verdict.PASS), 159.0, False),
        (RESUMED, MANUAL, look(Verdict.PASS), 160.0, True),
        (CANARY, MANUAL, look(Verdict.PASS, Verdict.INCONCLUSIVE), 160.0, False),
        (CANARY, MANUAL, look(Verdict.PASS, Verdict.FAIL), 160.0, False),
        (CANARY, MANUAL, look(), 160.0, False),
        (CANARY, MANUAL, look(Verdict.PASS, generation=0), 160.0, False),
        (CANARY, MANUAL, None, 160.0, False),
        (CANARY, PLAN, look(Verdict.PASS), 160.0, False),
        (CANARY[:1], MANUAL, look(), 160.0, True),
        (CANARY[:1], MANUAL, look(obstacles=("no worker",)), 160.0, False),
        (CANARY[:1], PLAN, look(), 160.0, False),
        ([*CANARY, record(Phase.DRAIN, 1.0)], MANUAL, look(), 900.0, False),
    ],
)
def test_a_step_of_a_manual_plan_waits_once_it_has_passed(
    history: list[RolloutRecord], plan: Plan, seen: LastLook | None, now: float, waits: bool
) -> None:
    assert waits == bool(waiting_step(history, plan, seen, now))


@pytest.mark.parametrize("phase", [Phase.CANARY, Phase.PAUSED])
@pytest.mark.parametrize("manual", [False, True])
def test_a_failure_aborts_at_once_also_in_a_pause(phase: Phase, manual: bool) -> None:
    plan = Plan(steps=PLAN.steps, manual=manual)
    change = next_change(record(phase, 0.5), plan, Observed(judgement=FAILED))
    assert change is not None
    assert (Phase.ABORT, Weights(0.0), True) == (change.phase, change.weights, change.gather)
    assert change.why == "redelivered: 30 of 100"
    gone = next_change(record(phase, 0.5), plan, Observed(judgement=STARVED, faults=("the target does not answer",)))
    assert gone is not None
    assert gone.why == "the target does not answer"


def test_an_aborted_rollout_ends_when_the_target_is_empty() -> None:
    assert next_change(record(Phase.ABORT), PLAN, Observed(is_empty=False)) is None
    change = next_change(record(Phase.ABORT), PLAN, Observed(is_empty=True))
    assert change is not None
    assert change.phase == Phase.ABORTED


def test_a_starved_step_waits_then_asks_a_person_and_never_passes() -> None:
    now = record(Phase.CANARY, 0.01)
    assert next_change(now, PLAN, Observed(step_age_s=599, state_age_s=599, judgement=STARVED)) is None
    # a person has resumed it
    assert next_change(now, PLAN, Observed(step_age_s=9999, state_age_s=3, judgement=STARVED)) is None
    change = next_change(now, PLAN, Observed(step_age_s=600, state_age_s=600, judgement=STARVED))
    assert change is not None
    assert (change.phase, change.weights) == (Phase.PAUSED, None)
    assert change.why == "a person must decide: the target finished 3 of 50 runs"
    assert next_change(record(Phase.PAUSED, 0.01), PLAN, Observed(step_age_s=9999, judgement=PASSED)) is None


def test_a_manual_rollout_waits_for_a_person_at_every_step() -> None:
    plan = Plan(steps=PLAN.steps, manual=True)
    assert next_change(record(Phase.PREPARE), plan, Observed()) is None
    assert next_change(record(Phase.CANARY, 0.01), plan, Observed(step_age_s=9999, judgement=PASSED)) is None
    steps = []
    now = record(Phase.PREPARE)
    while now.phase != Phase.DRAIN:
        change = promote(now, plan, "ann", "looks good")
        assert change.weights is not None
        steps.append(change.weights.default)
        now = record(Phase(str(change.phase)), change.weights.default)
    assert steps == [0.01, 0.5, 1.0, 1.0]


@pytest.mark.parametrize("phase", [Phase.DONE, Phase.ABORTED])
def test_nothing_follows_the_end(phase: Phase) -> None:
    assert next_change(record(phase), PLAN, Observed(judgement=FAILED, faults=("gone",), is_empty=True)) is None


def test_an_abort_names_who_and_why() -> None:
    change = abort("ann", "wrong queue")
    assert (change.who, change.why) == ("ann", "wrong queue")


def test_a_plan_survives_the_store() -> None:
    plan = Plan((0.1, 1.0), 5.0, 7.0, manual=True, queues=("a", "b"), criteria=Criteria(samples=3, slowdown=2.0))
    assert plan == Plan.of(plan.to_json())


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"steps": 1, "queues": [], "criteria": {}}', '{"other": 1}'])
def test_what_is_no_plan_is_one_clear_error(text: str) -> None:
    with pytest.raises(RecordUnreadable, match="the plan of a rollout cannot be read"):
        Plan.of(text)
