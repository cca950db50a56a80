"""The judge's arithmetic: what chance explains, what does not, and what is too little to say."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from dataclasses import replace
from math import comb
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repot.rollout.judge import Criteria, Verdict, judge, probability
from repot.rollout.samples import Histogram, Sample, empty, sample_of
from repot.worker.task_outcomes import TaskDuration, TaskOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable

CRITERIA = Criteria()


def histogram(seconds: Iterable[float], kind: TaskDuration = TaskDuration.RUNTIME) -> Histogram:
    found = list(empty(kind).counts)
    bounds = empty(kind).bounds
    for one in seconds:
        found[bisect_left(bounds, one)] += 1
    return Histogram(bounds, tuple(found))


def sample(succeeded: int, failed: int = 0, runtime: float = 0.01, **outcomes: int) -> Sample:
    count = succeeded + failed
    counted = {"received": count, "succeeded": succeeded, "failed": failed, **outcomes}
    waits = histogram([0.5] * count, TaskDuration.QUEUE_WAIT)
    return Sample(counted, histogram([runtime] * count), waits, sent=count)


def failing(target: Sample, source: Sample, criteria: Criteria = CRITERIA) -> list[str]:
    found = judge(target, source, criteria)
    return [one.criterion for one in found.findings if one.verdict is Verdict.FAIL]


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_the_probability_is_that_of_all_tables_with_these_margins(
    hits: int, misses: int, others: int, rest: int
) -> None:
    size, other_size = hits + misses, others + rest
    whole = sum(comb(size, k) * comb(other_size, hits + others - k) for k in range(hits + others + 1))
    tail = sum(comb(size, k) * comb(other_size, hits + others - k) for k in range(hits, hits + others + 1))
    assert probability((hits, size), (others, other_size)) == pytest.approx(tail / whole)


def test_the_lady_tasting_tea() -> None:
    """Fisher's own example, in a few words: three of four cups right, with one of four by chance."""
    assert probability((3, 4), (1, 4)) == pytest.approx(17 / 70)


def test_equal_sides_pass() -> None:
    found = judge(sample(100, 3), sample(1000, 30), CRITERIA)
    assert Verdict.PASS is found.verdict, found


@pytest.mark.parametrize(
    ("criterion", "target"),
    [
        ("failed", sample(80, 20)),
        ("retried", sample(100, first_retried=20)),
        ("redelivered", sample(100, redelivered=20)),
        ("dead-lettered", sample(100, dead_lettered=20)),
        ("unknown outcomes", sample(100, unknown_outcome=20)),
        ("not sent", replace(sample(100), publish_failures=20)),
        ("run time", sample(100, runtime=10)),
        ("wait in the queue", replace(sample(100), queue_wait=histogram([20.0] * 100, TaskDuration.QUEUE_WAIT))),
    ],
)
def test_each_kind_of_regression_fails_by_its_name(criterion: str, target: Sample) -> None:
    found = judge(target, sample(400), CRITERIA)
    assert Verdict.FAIL is found.verdict
    assert [criterion] == failing(target, sample(400))
    (reason,) = [one.reason for one in found.findings if one.criterion == criterion]
    assert "on the target" in reason
    assert "chance does not explain it" in reason


@pytest.mark.parametrize(("target", "source"), [(10, 1000), (1000, 10), (0, 0)])
def test_too_few_samples_never_pass(target: int, source: int) -> None:
    found = judge(sample(target), sample(source), CRITERIA)
    assert Verdict.INCONCLUSIVE is found.verdict
    assert "of 50 runs that a comparison needs" in found.findings[0].reason


def test_a_clear_failure_needs_no_minimum() -> None:
    assert Verdict.FAIL is judge(sample(0, 30), sample(1000), CRITERIA).verdict


def test_a_task_counts_once_however_often_it_is_retried() -> None:
    """Its retries are not independent: some tasks that poll for longer would be a certain difference."""
    often = {"received": 500, "retried": 400, "retries_received": 400}
    assert [] == failing(sample(100, **often, first_retried=4), sample(400, first_retried=16))
    # nor do its retries hide how few tasks there were
    assert ["retried"] == failing(sample(100, **often, first_retried=20), sample(400))


def test_that_the_task_of_chords_polls_is_no_retry() -> None:
    counts = {"received": 500, "succeeded": 100, "retried": 400, "retries_received": 400, "first_retried": 100}
    target = sample_of({f"outcome:{name}:celery.chord_unlock": count for name, count in counts.items()})
    assert (100, 400, 0) == (target.tasks, target.count(TaskOutcome.RETRIED), target.count(TaskOutcome.FIRST_RETRIED))
    assert [] == failing(target, sample(400))
    own = sample_of({f"outcome:{name}:shop.charge": count for name, count in counts.items()})
    assert ["retried"] == failing(own, sample(400))


def test_a_difference_that_does_not_matter_passes_however_certain_it_is() -> None:
    target, source = sample(99_000, 1_000), sample(100_000, 100)
    assert probability((1_000, 100_000), (100, 100_100)) < 1e-9
    assert [] == failing(target, source)
    assert ["failed"] == failing(target, source, Criteria(tolerance=0.001))


def test_runs_within_the_stated_slowdown_pass() -> None:
    source = sample(1000, runtime=0.2)
    assert [] == failing(sample(1000, runtime=0.3), source)
    assert ["run time"] == failing(sample(1000, runtime=1.5), source)


def test_short_tasks_that_take_six_times_as_long_fail_at_the_first_minimum_of_samples() -> None:
    chance = random.Random(3)  # noqa: S311 - not for secrets
    source, target = ([chance.lognormvariate(math.log(median), 0.6) for _ in range(50)] for median in (0.015, 0.09))
    usual = replace(sample(50), runtime=histogram(source))
    assert ["run time"] == failing(replace(sample(50), runtime=histogram(target)), usual)
    assert [] == failing(replace(sample(50), runtime=histogram([1.2 * one for one in source])), usual)


def test_each_process_may_be_slow_in_its_first_run() -> None:
    """Eight processes load and connect in their first run; one more slow run each is a regression."""
    source, cold = sample(1000, runtime=0.2), replace(sample(92, runtime=0.2), processes=8)
    for slow, verdict in ((8, []), (24, ["run time"])):
        counts = [now + more for now, more in zip(cold.runtime.counts, histogram([3.0] * slow).counts, strict=True)]
        assert verdict == failing(replace(cold, runtime=Histogram(cold.runtime.bounds, tuple(counts))), source)


def test_a_few_slow_runs_say_nothing() -> None:
    assert [] == failing(sample(49, runtime=30), sample(1000))
    assert ["run time"] == failing(sample(50, runtime=30), sample(1000))


def test_the_source_95th_percentile_above_all_buckets_is_no_failure() -> None:
    assert [] == failing(sample(1000, runtime=9000), sample(1000, runtime=9000))


def test_healthy_sides_fail_no_more_often_than_the_error_rate() -> None:
    """A thousand judgements of two sides that fail with the same probability."""
    chance = random.Random(7)  # noqa: S311 - not for secrets
    failures = 0
    for _ in range(1000):
        sides: list[Sample] = []
        for size in (200, 800):
            failed = sum(chance.random() < 0.05 for _ in range(size))
            sides.append(sample(size - failed, failed))
        failures += bool(failing(sides[0], sides[1]))
    assert failures <= 3


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 300), st.integers(0, 300))
def test_a_worse_target_is_never_judged_better(size: int, other: int, hits: int, others: int) -> None:
    hits, others = min(hits, size), min(others, other)
    worse = min(hits + 1, size)
    assert probability((worse, size), (others, other)) <= probability((hits, size), (others, other)) + 1e-9


def test_samples_subtract() -> None:
    both, one = sample(15, 3, redelivered=3), sample(10, 2)
    assert 18 == both.finished == both.runtime.total == both.sent
    later = both - one
    assert (6, 3, 6) == (later.finished, later.count(TaskOutcome.REDELIVERED), later.sent)
    assert sample(5, 1).runtime == later.runtime


def test_a_bound_is_the_smallest_that_covers_the_share() -> None:
    found = histogram([0.01] * 94 + [0.2] * 2 + [9000] * 4)
    assert 0.25 == found.bound_of(0.95)
    assert found.bound_of(0.97) is None
    assert empty(TaskDuration.RUNTIME).bound_of(0.95) is None
    assert (6, 4, 4) == (found.above(0.05), found.above(0.25), found.above(7200))


@pytest.mark.parametrize(("limit", "failed"), [(None, []), (5.0, []), (4.99, ["cost"])])
def test_repeated_runs_on_the_target_may_cost_up_to_the_limit(limit: float | None, failed: list[str]) -> None:
    target = replace(sample(100), costs={"spent": 100.0, "repeated": 5.0, "prevented": 1.0})
    criteria = replace(CRITERIA, cost_limit=limit)
    assert failed == failing(target, sample(100), criteria)
    (said,) = (one.reason for one in judge(target, sample(100), criteria).findings if one.criterion == "cost")
    assert said.startswith("cost of repeated runs: 5 of 100 on the target, 0 of 0 on the source")


def test_costs_are_no_criterion_where_no_task_states_a_price() -> None:
    assert "cost" not in {one.criterion for one in judge(sample(100), sample(100), CRITERIA).findings}


def test_a_task_that_fails_among_many_that_do_not_fails_the_step() -> None:
    """Its failures are 1.9 % of all runs, which the tolerance allows, and 38 % of its own."""
    ended = {"shop.charge": (19, 50), **{f"shop.{number}": (0, 95) for number in range(10)}}
    target = replace(sample(981, 19), ended=ended)
    source = replace(sample(1000), ended={task: (0, whole) for task, (_, whole) in ended.items()})
    assert ["failed shop.charge"] == failing(target, source)
    assert [] == failing(replace(target, ended={}), source)


def test_a_task_that_only_the_target_has_run_is_not_compared_by_itself() -> None:
    target = replace(sample(981, 19), ended={"shop.new": (19, 50)})
    assert [] == failing(target, replace(sample(1000), ended={"shop.charge": (0, 1000)}))


def test_many_healthy_tasks_do_not_fail_by_chance() -> None:
    """100 tasks with 5 % failures on both sides, judged 200 times."""
    chance = random.Random(7)  # noqa: S311 - no secret

    def ended() -> dict[str, tuple[int, int]]:
        return {f"t{number}": (sum(chance.random() < 0.05 for _ in range(60)), 60) for number in range(100)}

    found = [failing(replace(sample(100), ended=ended()), replace(sample(100), ended=ended())) for _ in range(200)]
    assert sum(map(bool, found)) <= 2


def test_runs_that_go_on_and_are_long_already_count_as_long() -> None:
    """Else a target on which runs hang has only short ones: those that ended."""
    runs = histogram([30.0] * 60)
    target = replace(sample(60), running=runs)
    assert ["run time"] == failing(target, sample(600))
    assert [] == failing(target, replace(sample(600), running=histogram([30.0] * 600)))
