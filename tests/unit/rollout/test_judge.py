"""The judge: what it fails by which name, what it passes, and what is too little to say."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from repot.errors import RecordUnreadable
from repot.rollout.judge import JUDGED, Criteria, Judge, Judgement, Step, Verdict
from repot.rollout.samples import Sample, sample_of
from repot.rollout.units import ALL_TASKS, Units, units_of
from repot.worker.task_outcomes import TaskDuration, TaskOutcome, bucket_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CRITERIA = Criteria()
TASK, OTHER = "shop.charge", "shop.mail"
#: Looks of a step, and what each side does in one.
LOOKS = 60


def roots(count: int, seconds: float = 0.06, wait_s: float = 1.0, **hits: float) -> Units:
    """What so many roots did of one task."""
    counts = Counter({"delivered": count, "tried": count, "ended": count} | hits)
    durations = {"runtime": {bucket_of(seconds): count}, "queue_wait": {bucket_of(wait_s): count}}
    return Units(counts, {kind: dict(found) for kind, found in durations.items()})


def added(one: Units, other: Units) -> Units:
    durations = {
        kind: dict(Counter(one.of(TaskDuration(kind))) + Counter(other.of(TaskDuration(kind))))
        for kind in ("runtime", "queue_wait")
    }
    return Units(Counter(one.counts) + Counter(other.counts), durations)


class Looks:
    """A step that is looked at each five seconds."""

    def __init__(self, criteria: Criteria = CRITERIA, *, is_last: bool = False) -> None:
        self.judge = Judge(criteria)
        self.now, self.is_last, self.step = 0.0, is_last, "1"
        self.found: dict[str, dict[str, Units]] = {"target": {}, "source": {}}
        self.before: dict[str, Units] = {}
        self.failures = {"target": 0, "source": 0}
        self.sent = {"target": 0, "source": 0}
        self.last = Judgement(())

    def look(self, target: Mapping[str, Units], source: Mapping[str, Units]) -> list[str]:
        """Add what both sides did since the last look; return what fails."""
        for side, new in (("target", target), ("source", source)):
            for task, units in new.items():
                self.found[side][task] = added(self.found[side].get(task, Units()), units)
        self.now += 5
        target_did, source_did = (
            Sample({"succeeded": 1000}, sent=self.sent[side], publish_failures=self.failures[side])
            for side in ("target", "source")
        )
        usual = dict(self.before)
        for task, units in self.found["source"].items():
            usual[task] = added(usual.get(task, Units()), units)
        step = Step(
            self.step,
            self.now,
            target_did,
            source_did,
            self.found["target"],
            self.found["source"],
            usual,
            is_last=self.is_last,
        )
        self.last = self.judge.look(step)
        return [one.criterion for one in self.last.findings if one.verdict is Verdict.FAIL]


def failing(
    target: Callable[[int], Mapping[str, Units]],
    source: Callable[[int], Mapping[str, Units]],
    criteria: Criteria = CRITERIA,
) -> list[str]:
    """Return what fails first in a step, and nothing if it passes."""
    looked = Looks(criteria)
    for number in range(LOOKS):
        if found := looked.look(target(number), source(number)):
            return found
    return []


def usual(number: int) -> dict[str, Units]:
    """What the source does in each look: 40 roots of two tasks; one look of ten has one failure of each kind."""
    hits = (
        {}
        if number % 10
        else dict.fromkeys(("failed", "retried", "redelivered", "dead_lettered", "unknown_outcome"), 1)
    )
    return {TASK: roots(20, **hits), OTHER: roots(20)}


@pytest.mark.parametrize(
    ("criterion", "worse"),
    [
        ("failed", roots(10, failed=3)),
        ("retried", roots(10, retried=3)),
        ("redelivered", roots(10, redelivered=3)),
        ("dead-lettered", roots(10, dead_lettered=3)),
        ("unknown outcomes", roots(10, unknown_outcome=3)),
        ("run time", roots(10, seconds=0.12)),
        ("wait in the queue", roots(10, wait_s=5.0)),
    ],
)
def test_each_kind_of_regression_of_a_task_fails_by_its_name(criterion: str, worse: Units) -> None:
    looked = Looks()
    found, before = list[str](), Judgement(())
    for number in range(LOOKS):
        before = looked.last
        if found := looked.look({TASK: worse, OTHER: roots(10)}, usual(number)):
            break
    assert [f"{criterion} {TASK}"] == found
    # a step that would have ended with the look before has waited
    assert [f"{criterion} {TASK}"] == doubted(before)
    (reason,) = [one.reason for one in looked.last.findings if one.verdict is Verdict.FAIL]
    assert "on the target" in reason
    assert "chance does not explain it (evidence" in reason
    # the same of the other task, whose runs are as many
    assert [f"{criterion} {OTHER}"] == failing(lambda _: {TASK: roots(10), OTHER: worse}, usual)


def doubted(judged: Judgement) -> list[str]:
    """The criteria for which a step waits."""
    return [one.criterion for one in judged.findings if one.verdict is Verdict.INCONCLUSIVE]


def test_a_step_waits_while_a_difference_is_plain_and_not_proved() -> None:
    """Else nine of ten charges are retried, and a step of ten seconds passes."""
    looked = Looks()
    looked.look({TASK: roots(5, retried=4)}, {TASK: roots(15)})
    assert [f"retried {TASK}"] == doubted(looked.last)
    assert str(looked.last.verdict) == "inconclusive"
    (reason,) = [one.reason for one in looked.last.findings if one.verdict is Verdict.INCONCLUSIVE]
    assert reason.startswith(
        "retried shop.charge: 4 of 5 roots on the target, 0 of 15 on the source; chance may explain"
    )
    for _ in range(10):
        # and it was chance
        assert looked.look({TASK: roots(20)}, {TASK: roots(20)}) == []
    assert str(looked.last.verdict) == "pass"


def test_equal_sides_pass() -> None:
    assert failing(lambda number: {TASK: roots(2), OTHER: roots(2, failed=not number % 20)}, usual) == []


def test_what_cannot_be_sent_again_and_again_fails() -> None:
    looked = Looks()
    found: list[list[str]] = []
    for number in range(LOOKS):
        looked.sent = {side: count + 10 for side, count in looked.sent.items()}
        looked.failures["target"] += 4
        found.append(looked.look({TASK: roots(1)}, usual(number)))
    assert found[-1] == ["not sent"]
    # not an outage of ten seconds
    assert not any(found[:6])


def test_one_outage_of_the_targets_broker_is_no_regression() -> None:
    looked = Looks()
    for number in range(LOOKS):
        looked.sent = {side: count + 10 for side, count in looked.sent.items()}
        looked.failures["target"] += 10 * (20 <= number < 23)
        assert looked.look({TASK: roots(1)}, usual(number)) == []


def test_a_task_that_always_fails_is_seen_after_a_handful_of_its_roots() -> None:
    """One in 500: three of three were passed by a test on the failures of all tasks."""
    looked = Looks()
    for number in range(1, 20):
        rare = {TASK: roots(1, failed=1)} if not number % 2 else {}
        if looked.look({OTHER: roots(250), **rare}, {OTHER: roots(250), TASK: roots(20)}):
            break
    assert number <= 14


def test_the_tasks_of_one_root_are_one_failure() -> None:
    """Workers count a root once, however many of its tasks fail: 40 of a chord with bad input are no evidence."""
    assert failing(lambda number: {TASK: roots(1, failed=number == 7), OTHER: roots(5)}, usual) == []


def test_an_outage_that_both_sides_feel_is_no_evidence() -> None:
    def both(count: int) -> Callable[[int], dict[str, Units]]:
        return lambda number: {TASK: roots(count, failed=count if 20 <= number < 24 else 0)}

    assert failing(both(5), both(20)) == []


def test_a_difference_that_does_not_matter_passes_however_certain_it_is() -> None:
    target, source = (lambda _: {TASK: roots(5000, failed=20)}), (lambda _: {TASK: roots(5000, failed=5)})
    assert failing(target, source) == []
    assert [f"failed {TASK}"] == failing(target, source, Criteria(tolerance=0.001))


@pytest.mark.parametrize("seconds", [0.005, 0.06, 1.0, 60.0, 7200.0])
def test_durations_are_compared_at_every_scale(seconds: float) -> None:
    chance = random.Random(3)  # noqa: S311 - no secret

    def side(count: int, factor: float) -> Callable[[int], dict[str, Units]]:
        def look(_: int) -> dict[str, Units]:
            found = Units()
            for _ in range(count):
                found = added(found, roots(1, seconds=seconds * factor * chance.lognormvariate(0, 0.3)))
            # the quick ones, of which there are many more
            return {TASK: found, OTHER: roots(100, seconds=0.01)}

        return look

    assert [f"run time {TASK}"] == failing(side(10, 1.6), side(20, 1.0))
    assert failing(side(10, 1.2), side(20, 1.0)) == []


def test_a_stated_slowdown_passes() -> None:
    slow, source = (lambda _: {TASK: roots(10, seconds=0.11)}), (lambda _: {TASK: roots(20)})
    assert [f"run time {TASK}"] == failing(slow, source)
    assert failing(slow, source, Criteria(slowdown=2.0)) == []


def test_some_runs_that_are_very_slow_fail() -> None:
    """The middle is what it was, and one in three takes 40 times as long."""
    mixed = added(roots(6), roots(3, seconds=2.4))
    assert [f"run time {TASK}"] == failing(lambda _: {TASK: mixed}, lambda _: {TASK: roots(20)})


def test_a_machine_that_is_busy_for_some_seconds_is_no_regression() -> None:
    """Its runs are slow by the dozen, and are not independent."""

    def target(number: int) -> dict[str, Units]:
        return {TASK: roots(100, seconds=0.6 if 20 <= number < 24 else 0.06)}

    assert failing(target, usual) == []
    assert [f"run time {TASK}"] == failing(lambda _: {TASK: roots(100, seconds=0.6)}, usual)


def test_runs_that_go_on_and_are_longer_than_any_of_the_source_fail() -> None:
    """Else a target on which runs hang has only short ones: those that ended."""
    looked = Looks()
    for number in range(10):
        assert looked.look({TASK: roots(2)}, usual(number)) == []
    did = looked.found["target"], looked.found["source"], looked.found["source"]
    long = {str(number): 60.0 for number in range(8)}
    step = Step("1", looked.now, Sample({"succeeded": 99}), Sample({"succeeded": 99}), *did)
    for running, expected in (
        ((long, {}), [f"run time {TASK}"]),
        ((long, long), []),
    ):
        found = looked.judge.look(replace(step, running={TASK: running})).findings
        assert expected == [one.criterion for one in found if one.verdict is Verdict.FAIL]


@pytest.mark.parametrize(("target", "source"), [(10, 1000), (1000, 10), (0, 0)])
def test_too_few_samples_never_pass(target: int, source: int) -> None:
    found = Judge(CRITERIA).look(Step("1", 0.0, Sample({"succeeded": target}), Sample({"succeeded": source})))
    assert Verdict.INCONCLUSIVE is found.verdict
    assert "of 50 runs that a comparison needs" in found.findings[0].reason


def test_workers_that_report_no_roots_never_pass() -> None:
    found = Judge(CRITERIA).look(Step("1", 0.0, Sample({"succeeded": 99}), Sample({"succeeded": 99})))
    assert Verdict.INCONCLUSIVE is found.verdict
    assert "older release" in found.findings[0].reason


def test_tasks_that_were_hardly_seen_are_named() -> None:
    looked = Looks()
    source = {TASK: roots(50), OTHER: roots(50), "reports.monthly": roots(2)}
    looked.look({TASK: roots(50), OTHER: roots(JUDGED - 1)}, source)
    (said,) = (one for one in looked.last.findings if one.criterion == "not judged")
    assert said.reason == "not judged: reports.monthly (0 runs), shop.mail (19 runs)"
    looked.look({"reports.yearly": roots(50)}, {"reports.yearly": roots(3)})
    assert "reports.yearly (3 runs on the source)" in looked.last.findings[-1].reason
    assert Verdict.PASS is looked.last.verdict
    looked.look({OTHER: roots(1)}, {"reports.monthly": roots(50), "reports.yearly": roots(17)})
    (said,) = (one for one in looked.last.findings if one.criterion == "not judged")
    assert said.reason == "not judged: reports.monthly (0 runs)"


@pytest.mark.parametrize("task", [OTHER, "reports.never"])
def test_a_required_task_must_have_been_seen(task: str) -> None:
    looked = Looks(Criteria(required=(task,)))
    looked.look({TASK: roots(50)}, {TASK: roots(50), OTHER: roots(50)})
    assert str(looked.last.verdict) == "inconclusive"
    assert f"{task} is required" in looked.last.findings[-1].reason
    looked.look({task: roots(JUDGED)}, {task: roots(JUDGED)})
    assert str(looked.last.verdict) == "pass"


def test_evidence_goes_on_with_another_controller() -> None:
    first, looked = Looks(), Looks()
    bad = {TASK: roots(1, failed=1)}
    looks = 0
    while not first.look(bad, usual(looks + 1)):
        looks += 1
    for number in range(looks):
        assert looked.look(bad, usual(number + 1)) == []
    another = Judge(CRITERIA)
    another.restore(looked.judge.to_json())
    assert json.loads(another.to_json()) == json.loads(looked.judge.to_json())
    looked.judge = another
    assert [f"failed {TASK}"] == looked.look(bad, usual(looks + 1))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        '["1", 0, [], [["failed", "t", "Unknown", []]]]',
        '["1", 0, [], [["failed", "t", "Shares", [[0, 0, 0, 0], [1]]]]]',
    ],
)
def test_evidence_of_another_program_is_refused(text: str) -> None:
    with pytest.raises(RecordUnreadable):
        Judge(CRITERIA).restore(text)


def in_steps(looks: int, worse: Units, steps: int = 4) -> tuple[list[str], str]:
    """What fails first in steps of so many looks, and in which one."""
    looked = Looks()
    for step in range(1, steps + 1):
        looked.step, looked.found = str(step), {"target": {}, "source": {}}
        for number in range(looks):
            if found := looked.look({TASK: worse, OTHER: roots(2)}, usual(number)):
                return found, looked.step
    return [], ""


@pytest.mark.parametrize(
    ("criterion", "worse"),
    [("failed", roots(2, failed=1)), ("run time", roots(2, seconds=0.12)), ("wait in the queue", roots(5, wait_s=5.0))],
)
def test_evidence_goes_on_from_step_to_step(criterion: str, worse: Units) -> None:
    """A difference that one step does not prove is proved by several."""
    looks = {"failed": 3, "run time": 7}.get(criterion, 8)
    found, step = in_steps(looks, worse)
    assert [f"{criterion} {TASK}"] == found
    assert step in ("2", "3", "4")


def test_the_last_step_begins_with_no_evidence() -> None:
    looked = Looks()
    for number in range(8):
        looked.look({TASK: roots(5, wait_s=5.0)}, usual(number))
    assert [f"wait in the queue {TASK}"] == doubted(looked.last)
    looked.step, looked.is_last, looked.found = "last", True, {"target": {}, "source": {}}
    looked.before = {TASK: roots(1000)}
    looked.look({TASK: roots(5)}, {})
    assert doubted(looked.last) == []


@pytest.mark.parametrize(
    ("worse", "expected"),
    [
        (roots(10, failed=3), [f"failed {TASK}"]),
        (roots(10, seconds=0.12), [f"run time {TASK}"]),
        (roots(10, wait_s=5.0), [f"wait in the queue {TASK}"]),
        (roots(10), []),
    ],
)
def test_without_a_source_the_target_is_compared_with_what_the_source_did(worse: Units, expected: list[str]) -> None:
    looked = Looks(is_last=True)
    looked.before = {TASK: roots(1000, failed=5)}
    found: list[str] = []
    for _ in range(LOOKS):
        if found := looked.look({TASK: worse}, {}):
            break
    assert expected == found


def test_without_a_source_an_outage_is_one_bad_moment() -> None:
    looked = Looks(is_last=True)
    looked.before = {TASK: roots(1000, failed=5)}
    for number in range(LOOKS):
        assert looked.look({TASK: roots(100, failed=100 if 20 <= number < 24 else 0)}, {}) == []


def test_without_a_source_a_share_that_moves_with_the_hour_is_none_of_the_targets_doing() -> None:
    looked = Looks(is_last=True)
    looked.before = {TASK: roots(1000, failed=43)}
    for _ in range(4 * LOOKS):
        assert looked.look({TASK: roots(1000, failed=60)}, {}) == []


def test_failures_at_the_start_of_long_runs_are_no_regression_when_the_target_gets_more_work() -> None:
    """One in ten fails at once, the others end after the step."""
    fails = roots(20, failed=2, tried=2, ended=2)
    assert failing(lambda _: {TASK: fails}, lambda _: {TASK: roots(20, failed=2)}) == []
    retried = roots(20, retried=2, tried=2, ended=0)
    assert failing(lambda _: {TASK: retried}, lambda _: {TASK: roots(20, retried=2)}) == []


def _healthy(chance: random.Random, counts: Sequence[int], share: float) -> bool:
    def side(count: int) -> Callable[[int], dict[str, Units]]:
        return lambda _: {
            task: roots(count, failed=sum(chance.random() < share for _ in range(count))) for task in (TASK, OTHER)
        }

    return bool(failing(side(counts[0]), side(counts[1]), Criteria(error_rate=0.5, tolerance=0.0)))


@pytest.mark.parametrize(("counts", "share"), [((1, 20), 0.02), ((5, 5), 0.1), ((20, 2), 0.3)])
def test_healthy_sides_fail_no_more_often_than_the_error_rate(counts: tuple[int, int], share: float) -> None:
    """At a rate of one half: of 40 steps, each with 60 looks, a test for one look fails nearly all."""
    chance = random.Random(7)  # noqa: S311 - no secret
    assert sum(_healthy(chance, counts, share) for _ in range(40)) <= 8


def test_that_the_task_of_chords_polls_is_no_retry() -> None:
    polls = {"celery.chord_unlock": roots(10, retried=9)}
    assert failing(lambda _: polls, lambda _: {"celery.chord_unlock": roots(20)}) == []
    counts = {"received": 500, "succeeded": 100, "retried": 400, "retries_received": 400, "first_retried": 100}
    target = sample_of({f"outcome:{name}:celery.chord_unlock": count for name, count in counts.items()})
    assert (target.tasks, target.count(TaskOutcome.RETRIED), target.count(TaskOutcome.FIRST_RETRIED)) == (100, 400, 0)


def test_roots_are_read_from_the_counts_of_a_side() -> None:
    now = {
        f"units:tried:{TASK}": 12,
        "units:tried:": 10,
        f"units_runtime:-8:{TASK}": 12,
        "units:tried:unknown": 3,
        f"outcome:received:{TASK}": 40,
        f"runtime:3:{TASK}": 40,
    }
    found = units_of(now, {f"units:tried:{TASK}": 2, f"units_runtime:-8:{TASK}": 12}, {TASK})
    assert {TASK, ALL_TASKS} == set(found)
    assert found[TASK].counts == {"tried": 10}
    assert found[TASK].of(TaskDuration.RUNTIME) == {}


@pytest.mark.parametrize(("limit", "failed"), [(None, []), (5.0, []), (4.99, ["cost"])])
def test_repeated_runs_on_the_target_may_cost_up_to_the_limit(limit: float | None, failed: list[str]) -> None:
    target = Sample({"succeeded": 100}, costs={"spent": 100.0, "repeated": 5.0, "prevented": 1.0})
    found = Judge(Criteria(cost_limit=limit)).look(Step("1", 0.0, target, Sample({"succeeded": 100}))).findings
    assert failed == [one.criterion for one in found if one.verdict is Verdict.FAIL]
    (said,) = (one.reason for one in found if one.criterion == "cost")
    assert said.startswith("cost of repeated runs: 5 of 100 on the target, 0 of 0 on the source")


def test_costs_are_no_criterion_where_no_task_states_a_price() -> None:
    both = Sample({"succeeded": 100})
    assert "cost" not in {one.criterion for one in Judge(CRITERIA).look(Step("1", 0.0, both, both)).findings}
