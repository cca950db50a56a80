"""Judge the target by comparing it with the source: pass, fail, or inconclusive.

The canary divides by root id, and tasks of one root end alike; so what is compared is counted once for each root.
Each task is compared by itself: its failures and its run times hide in those of all tasks. The controller looks each
second, so a comparison keeps evidence that counts however often one looks (`repot/rollout/evidence.py`). The
probability that chance aborts a rollout is `error_rate` for all its steps, tasks and comparisons together.

A difference fails only if it is also larger than `tolerance`, or than `slowdown`: with many samples a test finds
differences that matter to no user.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from math import exp, log
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from repot.errors import RecordUnreadable
from repot.rollout.comparisons import InWindows, RunTimes, Shares, late
from repot.rollout.evidence import Counted, Evidence, log_mean, needed, portion
from repot.rollout.samples import CHORD_UNLOCK
from repot.rollout.units import ALL_TASKS, Units, above, name_of, quantile
from repot.worker.cost import CostKind
from repot.worker.task_outcomes import SENT, RootUnit, TaskDuration, TaskOutcome, bound_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from repot.rollout.samples import Sample

T = TypeVar("T", "Shares", "RunTimes", "InWindows")
Comparison: TypeAlias = "Shares | RunTimes | InWindows"

#: Criterion -> which roots are counted, and of which. All are of the roots delivered: when a step begins, the target
#: gets more work at once, and of long runs those that fail at their start end first.
_SHARES = {
    "failed": (RootUnit.FAILED, RootUnit.DELIVERED),
    "retried": (RootUnit.RETRIED, RootUnit.DELIVERED),
    "redelivered": (RootUnit.REDELIVERED, RootUnit.DELIVERED),
    "dead-lettered": (RootUnit.DEAD_LETTERED, RootUnit.DELIVERED),
    "unknown outcomes": (RootUnit.UNKNOWN_OUTCOME, RootUnit.DELIVERED),
}
#: The criterion of the finding that names the tasks of which too little was seen.
NOT_JUDGED = "not judged"
_NOT_SENT, _RUN_TIME, _WAIT = "not sent", "run time", "wait in the queue"
_KINDS: dict[str, type[Comparison]] = {one.__name__: one for one in (Shares, RunTimes, InWindows)}
#: How many comparisons each task has: also runs that have ended, runs that go on, waits, and what could not be sent.
_COMPARED = len(_SHARES) + 4
#: The part of the probability of a wrong abort for the last step; the steps before share the rest and their evidence.
_OF_THE_LAST_STEP = 0.5
#: Tasks that share most of the probability of a wrong abort; a tenth is for those beyond.
_TASKS = 20
#: Without a control a target fails beyond so many times the share that was usual before: it moves with the hour.
_DRIFT = 2.0
#: Runs that go on are late after this quantile of the source's.
_LONGEST = 0.99
#: Roots that each side needs before a task counts as judged.
JUDGED = 20
#: The logarithm of the evidence with which a step waits for more: chance reaches it in one of twenty comparisons at
#: most, and then it falls again. Without it, a step that ends before the evidence suffices passes what is plain to see.
_SUSPECTED = log(20)


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
        error_rate: probability with which chance aborts a whole rollout whose sides are alike.
        tolerance: difference of two shares that does not matter.
        slowdown: factor of the source's run times and waits that does not matter.
        cost_limit: what repeated runs on the target may cost in a step; None for no limit.
        required: tasks without which a step does not pass: so many roots of each side ran them as a comparison needs.
    """

    samples: int = 50
    error_rate: float = 0.01
    tolerance: float = 0.005
    slowdown: float = 1.25
    cost_limit: float | None = None
    required: tuple[str, ...] = ()


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


@dataclass(frozen=True, slots=True)
class Step:
    """What both sides did in a step, or in the rollout where the step has no source.

    Attributes:
        name: of the step, as no other one is named.
        now: in seconds since 1970, by the store's clock.
        target, source: what all tasks did.
        target_roots, source_roots: the same by task and root id.
        usual: what the source's roots did since the rollout began.
        running: by task, the roots whose tasks go on, and for how many seconds, of the target and of the source.
        is_last: the source gets no more work, so the target is compared with what it did before.
    """

    name: str
    now: float
    target: Sample
    source: Sample
    target_roots: Mapping[str, Units] = field(default_factory=dict)
    source_roots: Mapping[str, Units] = field(default_factory=dict)
    usual: Mapping[str, Units] = field(default_factory=dict)
    running: Mapping[str, tuple[Mapping[str, float], Mapping[str, float]]] = field(default_factory=dict)
    is_last: bool = False

    def roots(self, task: str) -> tuple[Units, Units]:
        """Return what is compared of a task."""
        source = self.usual if self.is_last else self.source_roots
        return self.target_roots.get(task, Units()), source.get(task, Units())


class Judge:
    """Judges the steps of one rollout, and keeps the evidence."""

    def __init__(self, criteria: Criteria) -> None:
        """Judge by these criteria."""
        self.criteria = criteria
        self._step = ""
        self._tasks: list[str] = []
        self._comparisons: dict[tuple[str, str], Comparison] = {}

    def look(self, step: Step) -> Judgement:
        """Compare what both sides did in a step so far."""
        if step.name != self._step:
            self._begin(step)
        findings = [self._enough(step), *self._failures(step)]
        failed = {one.criterion for one in findings}
        findings += [one for one in _said(step) if one.criterion not in failed]
        if step.target.costs or step.source.costs or self.criteria.cost_limit is not None:
            findings.append(_cost(step.target.costs, step.source.costs, self.criteria.cost_limit))
        return Judgement((*findings, *self._unjudged(step)))

    def _begin(self, step: Step) -> None:
        """Begin a step: the evidence of the steps before goes on, but in the last one, which has no control."""
        self._step = step.name
        if step.is_last:
            self._comparisons = {}
        for one in self._comparisons.values():
            one.go_on()

    def to_json(self) -> str:
        """Return the evidence for the store."""
        kept = [[*key, type(one).__name__, one.to_json()] for key, one in self._comparisons.items()]
        return json.dumps([self._step, self._tasks, kept])

    def restore(self, text: str) -> None:
        """Go on with evidence that was stored.

        Raises:
            RecordUnreadable: it is not evidence.
        """
        try:
            step, tasks, kept = json.loads(text)
            comparisons = {(criterion, task): _KINDS[kind].of(found) for criterion, task, kind, found in kept}
            self._step, self._tasks = str(step), list(map(str, tasks))
        except (ValueError, TypeError, KeyError) as error:
            message = f"the evidence of a rollout's judge cannot be read: {error}"
            raise RecordUnreadable(message, hint="Another release of repot, or another program, wrote it.") from error
        self._comparisons = comparisons

    def _enough(self, step: Step) -> Finding:
        counts = {"target": step.target.finished, "source": step.source.finished}
        needed_runs = self.criteria.samples
        short = [f"the {name} finished {count}" for name, count in counts.items() if count < needed_runs]
        if short:
            reason = f"{' and '.join(short)} of {needed_runs} runs that a comparison needs"
            return Finding("samples", Verdict.INCONCLUSIVE, reason)
        if not (step.target_roots and (step.source_roots or step.usual)):
            reason = "workers of an older release report no roots, by which the judge compares"
            return Finding("samples", Verdict.INCONCLUSIVE, reason)
        reason = f"the target finished {counts['target']} runs, the source {counts['source']}"
        return Finding("samples", Verdict.PASS, reason)

    def _failures(self, step: Step) -> Iterator[Finding]:
        on_target, on_source = (
            step.target_roots.keys() | step.running.keys(),
            step.source_roots.keys() | step.usual.keys(),
        )
        for task in sorted(on_target & on_source):
            target, source = step.roots(task)
            yield from self._failing_shares(task, target, source, step)
            if task != ALL_TASKS:
                yield from self._slow(task, target, source, step)
                yield from self._waiting(task, target, source, step)
        yield from self._not_sent(step)

    def _failing_shares(self, task: str, target: Units, source: Units, step: Step) -> Iterator[Finding]:
        for criterion, (hit, unit) in _SHARES.items():
            if criterion == "retried" and name_of(task) == CHORD_UNLOCK:
                continue
            counted = Counted(target.count(hit), target.count(unit), source.count(hit), source.count(unit)).possible
            log_evidence = self._share(criterion, task, counted, step)
            if _differ(counted, self.criteria.tolerance):
                yield from self._weighed(criterion, task, partial(_roots, counted), log_evidence)

    def _share(self, criterion: str, task: str, counted: Counted, step: Step) -> float:
        if not step.is_last:
            return self._of(criterion, task, Shares).look(counted)
        # there is no control at the same time: what all feel, such as an outage, is one bad window of time
        compared = self._of(criterion, task, InWindows)
        return compared.shares(counted, self.criteria.tolerance, step.now, alone=True, drift=_DRIFT)

    def _slow(self, task: str, target: Units, source: Units, step: Step) -> Iterator[Finding]:
        runs, others = (one.of(TaskDuration.RUNTIME) for one in (target, source))
        log_ended, log_running = self._slower(task, runs, others, step), self._going_on(task, target, source, step)
        if log_ended >= min(log_running, self._needed(task)):
            yield from self._weighed(_RUN_TIME, task, partial(_quantiles, runs, others), log_ended)
        else:
            reason = f"runs go on for longer than {self.criteria.slowdown:g} times what 99 % took on the source"
            yield from self._weighed(_RUN_TIME, task, lambda: reason, log_running)

    def _slower(self, task: str, runs: Mapping[int, float], others: Mapping[int, float], step: Step) -> float:
        if not step.is_last:
            usual = step.usual.get(task, Units()).of(TaskDuration.RUNTIME)
            return self._of(_RUN_TIME, task, RunTimes).look(runs, others, usual, self.criteria.slowdown, step.now)
        found = []
        for place, counted in enumerate(late(runs, others, self.criteria.slowdown)):
            compared = self._of(f"{_RUN_TIME} {place}", task, InWindows)
            found.append(compared.shares(counted, self.criteria.tolerance, step.now, alone=True))
        return log_mean(found or [0.0])

    def _waiting(self, task: str, target: Units, source: Units, step: Step) -> Iterator[Finding]:
        waits, others = (one.of(TaskDuration.QUEUE_WAIT) for one in (target, source))
        compared = self._of(_WAIT, task, InWindows)
        log_evidence = compared.waits(waits, others, self.criteria.slowdown, step.now, alone=step.is_last)
        yield from self._weighed(_WAIT, task, partial(_quantiles, waits, others), log_evidence)

    def _going_on(self, task: str, target: Units, source: Units, step: Step) -> float:
        """Return the evidence of the runs that have not ended yet: else runs that hang are not seen.

        Without a source at work there is nothing to compare them with.
        """
        usual = step.usual.get(task, Units()).of(TaskDuration.RUNTIME)
        if step.is_last or task not in step.running or sum(usual.values()) < self.criteria.samples:
            return 0.0
        longest = quantile(usual, _LONGEST)
        target_bound, source_bound = bound_of(longest) * self.criteria.slowdown, bound_of(longest)
        late = sum(seconds > target_bound for seconds in step.running[task][0].values())
        others = sum(seconds > source_bound for seconds in step.running[task][1].values())
        ended, other_ended = (one.count(RootUnit.TRIED) for one in (target, source))
        other_late = others + above(source.of(TaskDuration.RUNTIME), longest)
        counted = Counted(late, late + ended, other_late, others + max(other_ended, 1))
        return Evidence().with_block(counted, max(1 - _LONGEST, 1 / sum(usual.values())))

    def _not_sent(self, step: Step) -> Iterator[Finding]:
        target, source = ((one.publish_failures, one.sent + one.publish_failures) for one in (step.target, step.source))
        sending = self._of(_NOT_SENT, ALL_TASKS, InWindows)
        counted = Counted(*target, *source)
        log_evidence = sending.shares(counted, self.criteria.tolerance, step.now, alone=step.is_last)
        reason = f"{target[0]} of {target[1]} on the target, {source[0]} of {source[1]} on the source"
        yield from self._weighed(_NOT_SENT, ALL_TASKS, lambda: reason, log_evidence)

    def _unjudged(self, step: Step) -> Iterator[Finding]:
        """Name the tasks of which too little was seen, and say which of them the step waits for."""
        known = {name_of(task) for side in (step.target_roots, step.source_roots, step.usual) for task in side}
        sides = step.target_roots, step.usual if step.is_last else step.source_roots
        tried = {
            task: [_tried(task, side) for side in sides]
            for task in (known | set(self.criteria.required)) - {ALL_TASKS, CHORD_UNLOCK}
        }
        few = {task: counts for task, counts in tried.items() if min(counts) < JUDGED}
        if few:
            names = ", ".join(
                f"{task} ({target} runs)" if target < JUDGED else f"{task} ({source} runs on the source)"
                for task, (target, source) in sorted(few.items())
            )
            yield Finding(NOT_JUDGED, Verdict.PASS, f"not judged: {names}")
        for task in sorted(few.keys() & set(self.criteria.required)):
            counts = tried[task]
            reason = f"{task} is required: {counts[0]} roots on the target and {counts[1]} on the source, of {JUDGED}"
            yield Finding("required", Verdict.INCONCLUSIVE, reason)

    def _of(self, criterion: str, task: str, kind: type[T]) -> T:
        """Return a comparison, which begins with the first look at it."""
        found = self._comparisons.get((criterion, task))
        if not isinstance(found, kind):
            found = self._comparisons[criterion, task] = kind()
        return found

    def _needed(self, task: str) -> float:
        if task not in self._tasks:
            self._tasks.append(task)
        place = self._tasks.index(task)
        return needed(self.criteria.error_rate, (_OF_THE_LAST_STEP, portion(place, _TASKS), 1 / _COMPARED))

    def _weighed(self, criterion: str, task: str, say: Callable[[], str], log_evidence: float) -> Iterator[Finding]:
        """Yield what the evidence says: the target fails, or the step waits for more, or nothing.

        `say` is called only if there is something to say: each task has several comparisons, each second.
        """
        wanted = self._needed(task)
        if log_evidence < min(wanted, _SUSPECTED):
            return
        named = f"{criterion} {name_of(task)}{' sent by tasks' if task.startswith(SENT) else ''}".rstrip()
        said, numbers = say(), f"(evidence {_number(log_evidence)}, needed {_number(wanted)})"
        if log_evidence >= wanted:
            yield Finding(named, Verdict.FAIL, f"{named}: {said}; chance does not explain it {numbers}")
        else:
            yield Finding(named, Verdict.INCONCLUSIVE, f"{named}: {said}; chance may explain it {numbers}")


def _tried(task: str, side: Mapping[str, Units]) -> int:
    return int(sum(side[one].count(RootUnit.TRIED) for one in (task, f"{SENT}{task}") if one in side))


def _roots(counted: Counted) -> str:
    return (
        f"{counted.target_hits:g} of {counted.target_units:g} roots on the target, "
        f"{counted.source_hits:.3g} of {counted.source_units:.6g} on the source"
    )


def _differ(counted: Counted, tolerance: float) -> bool:
    source = counted.source_hits / counted.source_units if counted.source_units else 0.0
    return bool(counted.target_units) and counted.target_hits / counted.target_units > source + tolerance


def _quantiles(target: Mapping[int, float], source: Mapping[int, float]) -> str:
    parts = []
    for name, found in (("target", target), ("source", source)):
        half, most = (f"{bound_of(quantile(found, share)):.2g} s" if found else "unknown" for share in (0.5, 0.9))
        parts.append(f"half within {half} and 90 % within {most} on the {name}")
    return ", ".join(parts)


def _number(logarithm: float) -> str:
    return f"{exp(logarithm):.1e}" if logarithm < _LARGEST else "beyond 1e+300"


#: A larger exponent is no number.
_LARGEST = 690.0


def _of_received(outcome: TaskOutcome) -> Callable[[Sample], tuple[int, int]]:
    return lambda one: (one.count(outcome), one.count(TaskOutcome.RECEIVED))


#: Criterion -> of all messages and runs, its count, and of how many.
_COUNTS: dict[str, Callable[[Sample], tuple[int, int]]] = {
    "failed": lambda one: (one.count(TaskOutcome.FAILED), one.finished),
    "retried": lambda one: (one.count(TaskOutcome.FIRST_RETRIED), one.tasks),
    "redelivered": _of_received(TaskOutcome.REDELIVERED),
    "dead-lettered": _of_received(TaskOutcome.DEAD_LETTERED),
    "unknown outcomes": _of_received(TaskOutcome.UNKNOWN_OUTCOME),
    _NOT_SENT: lambda one: (one.publish_failures, one.sent + one.publish_failures),
}


def _said(step: Step) -> Iterator[Finding]:
    """Yield what both sides did, for people who read: no comparison."""
    for criterion, count in _COUNTS.items():
        (hits, whole), (others, other_whole) = count(step.target), count(step.source)
        counts = f"{criterion}: {hits} of {whole} on the target, {others} of {other_whole} on the source"
        yield Finding(criterion, Verdict.PASS, counts)
    for criterion, kind in ((_RUN_TIME, TaskDuration.RUNTIME), (_WAIT, TaskDuration.QUEUE_WAIT)):
        target, source = (
            one.runtime if kind is TaskDuration.RUNTIME else one.queue_wait for one in (step.target, step.source)
        )
        bounds = [one.bound_of(0.95) for one in (target, source)]
        names = [f"{one:g} s" if one is not None else "unknown" for one in bounds]
        yield Finding(
            criterion, Verdict.PASS, f"{criterion}: 95 % within {names[0]} on the target, {names[1]} on the source"
        )


def _cost(target: Mapping[str, float], source: Mapping[str, float], limit: float | None) -> Finding:
    """Compare what repeated runs on the target have cost with a limit: money is no share of a count."""
    (again, all_), (source_again, source_all) = (
        (side.get(CostKind.REPEATED, 0), side.get(CostKind.SPENT, 0)) for side in (target, source)
    )
    costs = (
        f"cost of repeated runs: {again:.6g} of {all_:.6g} on the target, {source_again:.6g} of {source_all:.6g} on "
        "the source"
    )
    if limit is None or again <= limit:
        return Finding("cost", Verdict.PASS, costs)
    return Finding("cost", Verdict.FAIL, f"{costs}; the limit is {limit:g}")
