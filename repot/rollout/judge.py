"""Judge the target by comparing it with the source: pass, fail, or inconclusive.

Shares, such as failed of finished runs, are compared by Fisher's exact test, one-sided: is the target's share larger
than the source's by more than chance explains? It needs no minimum of failures, unlike a test by the normal
distribution. Durations are compared in the same way: the share of the target's runs above a bound that is
`slowdown` times the source's 95th percentile, so that the width of the buckets cannot fail a healthy target.

A difference fails only if it is also larger than `tolerance`: with many samples a test finds differences that matter to
no user. The judge looks many times in a step, so its error rate is small.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import exp, lgamma
from typing import TYPE_CHECKING, TypeAlias

from repot.rollout.samples import empty
from repot.worker.cost import CostKind
from repot.worker.task_outcomes import TaskDuration, TaskOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from repot.rollout.samples import Histogram, Sample

Durations: TypeAlias = "tuple[Histogram, Histogram]"
#: By task: failed runs, and runs that ended for good.
Ended: TypeAlias = "Mapping[str, tuple[int, int]]"

#: Durations are compared at this share.
_QUANTILE = 0.95


class Verdict(StrEnum):
    """What the judge says."""

    PASS = "pass"  # noqa: S105 - a verdict
    FAIL = "fail"
    #: Too few samples; it never passes a step.
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Criteria:
    """When a target fails.

    Attributes:
        samples: finished runs that each side needs.
        error_rate: probability that chance explains the difference, below which it fails.
        tolerance: difference of two shares that does not matter.
        slowdown: factor of the source's 95th percentile that does not matter.
        cost_limit: what repeated runs on the target may cost in a step; None for no limit.
    """

    samples: int = 50
    error_rate: float = 0.001
    tolerance: float = 0.02
    slowdown: float = 1.5
    cost_limit: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one comparison, with the sentence that explains it."""

    criterion: str
    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """All findings; one that fails decides, then one that is inconclusive."""

    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """Return the verdict on the step."""
        verdicts = {one.verdict for one in self.findings}
        if Verdict.FAIL in verdicts:
            return Verdict.FAIL
        return Verdict.PASS if verdicts == {Verdict.PASS} else Verdict.INCONCLUSIVE


def _of_received(outcome: TaskOutcome) -> Callable[[Sample], tuple[int, int]]:
    return lambda one: (one.count(outcome), one.count(TaskOutcome.RECEIVED))


#: Criterion -> its count, and of how many.
_SHARES: dict[str, Callable[[Sample], tuple[int, int]]] = {
    "failed": lambda one: (one.count(TaskOutcome.FAILED), one.finished),
    # each task once: the test takes what it counts as independent, and a task that polls is retried again and again
    "retried": lambda one: (one.count(TaskOutcome.FIRST_RETRIED), one.tasks),
    "redelivered": _of_received(TaskOutcome.REDELIVERED),
    "dead-lettered": _of_received(TaskOutcome.DEAD_LETTERED),
    "unknown outcomes": _of_received(TaskOutcome.UNKNOWN_OUTCOME),
}


def judge(target: Sample, source: Sample, criteria: Criteria) -> Judgement:
    """Compare what both sides did in a step."""
    return Judgement((_enough(target, source, criteria), *_compared(target, source, criteria)))


def _enough(target: Sample, source: Sample, criteria: Criteria) -> Finding:
    counts = {"target": target.finished, "source": source.finished}
    short = [f"the {name} finished {count}" for name, count in counts.items() if count < criteria.samples]
    if short:
        reason = f"{' and '.join(short)} of {criteria.samples} runs that a comparison needs"
        return Finding("samples", Verdict.INCONCLUSIVE, reason)
    return Finding("samples", Verdict.PASS, f"the target finished {target.finished} runs, the source {source.finished}")


def _compared(target: Sample, source: Sample, criteria: Criteria) -> Iterator[Finding]:
    for name, share in _SHARES.items():
        yield _share(name, share(target), share(source), criteria)
    yield from _failing_tasks(target.ended, source.ended, criteria)
    yield _share(
        "not sent",
        (target.publish_failures, target.sent + target.publish_failures),
        (source.publish_failures, source.sent + source.publish_failures),
        criteria,
    )
    runs = ((target.runtime, target.running), (source.runtime, source.running))
    yield _slower("run time", *runs, criteria, target.processes)
    none = (empty(TaskDuration.QUEUE_WAIT),)
    yield _slower("wait in the queue", (target.queue_wait, *none), (source.queue_wait, *none), criteria)
    if target.costs or source.costs or criteria.cost_limit is not None:
        yield _cost(target.costs, source.costs, criteria.cost_limit)


def _failing_tasks(target: Ended, source: Ended, criteria: Criteria) -> Iterator[Finding]:
    """Compare each task by itself: the other ones hide it in the share of all. Only what fails is a finding."""
    # so many comparisons are as likely to err as one
    strict = replace(criteria, error_rate=criteria.error_rate / max(len(target), 1))
    for task, counts in target.items():
        found = _share(f"failed {task}", counts, source.get(task, (0, 0)), strict)
        if found.verdict is Verdict.FAIL:
            yield found


def _share(name: str, target: tuple[int, int], source: tuple[int, int], criteria: Criteria) -> Finding:
    """Compare two shares, each as a count and the whole."""
    said = f"{name}: {target[0]} of {target[1]} on the target, {source[0]} of {source[1]} on the source"
    if not target[1] or target[0] / target[1] <= (source[0] / source[1] if source[1] else 0) + criteria.tolerance:
        return Finding(name, Verdict.PASS, said)
    chance = probability(target, source)
    if chance >= criteria.error_rate:
        return Finding(name, Verdict.PASS, f"{said}; chance explains it (p = {chance:.2g})")
    return Finding(name, Verdict.FAIL, f"{said}; chance does not explain it (p = {chance:.2g})")


def _cost(target: Mapping[str, float], source: Mapping[str, float], limit: float | None) -> Finding:
    """Compare what repeated runs on the target have cost with a limit: money is no share of a count."""
    (again, all_), (source_again, source_all) = (
        (side.get(CostKind.REPEATED, 0), side.get(CostKind.SPENT, 0)) for side in (target, source)
    )
    said = (
        f"cost of repeated runs: {again:.6g} of {all_:.6g} on the target, {source_again:.6g} of {source_all:.6g} on "
        "the source"
    )
    if limit is None or again <= limit:
        return Finding("cost", Verdict.PASS, said)
    return Finding("cost", Verdict.FAIL, f"{said}; the limit is {limit:g}")


def _slower(name: str, target: Durations, source: Durations, criteria: Criteria, cold: int = 0) -> Finding:
    """Compare durations, each those that have ended and those that go on: one that goes on counts once it is longer.

    `cold` of the target's may be long: a process loads and connects in its first run.
    """
    usual = source[0].bound_of(_QUANTILE)
    if usual is None:
        why = "nothing was measured on the source" if not source[0].total else "the source's 95th percentile is unknown"
        return Finding(name, Verdict.PASS if source[0].total else Verdict.INCONCLUSIVE, f"{name}: {why}")
    bounds = source[0].bounds
    bound = next((one for one in bounds if one >= usual * criteria.slowdown), bounds[-1])

    def longer(ended: Histogram, still: Histogram) -> tuple[int, int]:
        return ended.above(bound) + still.above(bound), ended.total + still.above(bound)

    hits, whole = longer(*target)
    if whole < criteria.samples:
        # a few runs on a busy machine say little of durations
        return Finding(name, Verdict.PASS, f"{name}: {hits} of {whole} on the target took longer than {bound:g} s")
    spared = min(cold, criteria.samples // 2, hits)
    found = _share(name, (hits - spared, whole), longer(*source), criteria)
    first = f", not counting {spared} that may be first runs of a process" if spared else ""
    return Finding(name, found.verdict, f"{found.reason} took longer than {bound:g} s{first}")


def probability(target: tuple[int, int], source: tuple[int, int]) -> float:
    """Return the probability of a target's count at least as large, if both sides have the same share.

    Each side is a count and the whole; a message may be counted twice where it is delivered twice, so a count is taken
    as at most the whole.
    Fisher's exact test: the hypergeometric distribution's upper tail.
    """
    (hits, size), (others, other_size) = ((min(count, whole), whole) for count, whole in (target, source))
    total, hit_total = size + other_size, hits + others
    highest = min(size, hit_total)
    logs = [
        _choose(hit_total, k) + _choose(total - hit_total, size - k) - _choose(total, size)
        for k in range(hits, highest + 1)
        if size - k <= total - hit_total
    ]
    return min(1.0, sum(map(exp, logs)))


def _choose(of: int, count: int) -> float:
    """Return the logarithm of the binomial coefficient."""
    return lgamma(of + 1) - lgamma(count + 1) - lgamma(of - count + 1)
