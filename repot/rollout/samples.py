"""What one side of a rollout did in a step: counts and histograms, and their arithmetic."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from repot.routing.synthetic import TASK as SYNTHETIC
from repot.worker.cost import MILLIONTHS
from repot.worker.task_outcomes import BUCKETS_S, TaskDuration, TaskOutcome

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from repot.routing.tally import WorkerState


_ENDED = (TaskOutcome.SUCCEEDED, TaskOutcome.FAILED)
#: Celery's task that polls until a chord's tasks have ended, where the result store cannot count them.
CHORD_UNLOCK = "celery.chord_unlock"


@dataclass(frozen=True, slots=True)
class Histogram:
    """Durations by buckets, as workers count them: one count for each bound, and one for longer durations."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        """Return how many durations were counted."""
        return sum(self.counts)

    def bound_of(self, share: float) -> float | None:
        """Return the smallest bound below which at least this share lies; None if it is above all of them."""
        place = bisect_left(list(accumulate(self.counts)), share * self.total)
        return self.bounds[place] if self.total and place < len(self.bounds) else None

    def above(self, bound: float) -> int:
        """Count the durations above a bound."""
        return sum(self.counts[bisect_left(self.bounds, bound) + 1 :])

    def __sub__(self, earlier: Histogram) -> Histogram:
        """Return what was counted since an earlier look."""
        pairs = zip(self.counts, earlier.counts, strict=True)
        return Histogram(self.bounds, tuple(now - before for now, before in pairs))


def empty(kind: TaskDuration) -> Histogram:
    """Return a histogram without durations."""
    bounds = BUCKETS_S[kind]
    return Histogram(bounds, (0,) * (len(bounds) + 1))


@dataclass(frozen=True, slots=True)
class Sample:
    """What one side did.

    Attributes:
        outcomes: counts by `TaskOutcome`, of all tasks.
        runtime: of runs that ended.
        queue_wait: of first deliveries.
        sent: messages that producers sent to this side.
        publish_failures: messages that producers could not send to this side, with those that another side took.
        costs: by `CostKind`, of the tasks that state a price; empty if none does.
    """

    outcomes: Mapping[str, int] = field(default_factory=Counter)
    runtime: Histogram = field(default_factory=lambda: empty(TaskDuration.RUNTIME))
    queue_wait: Histogram = field(default_factory=lambda: empty(TaskDuration.QUEUE_WAIT))
    sent: int = 0
    publish_failures: int = 0
    costs: Mapping[str, float] = field(default_factory=dict)

    def count(self, *outcomes: TaskOutcome) -> int:
        """Return how many messages had one of these outcomes."""
        return sum(self.outcomes.get(one, 0) for one in outcomes)

    @property
    def finished(self) -> int:
        """Return how many runs ended for good."""
        return self.count(*_ENDED)

    @property
    def tasks(self) -> int:
        """Return how many messages were received that are no retries."""
        return self.count(TaskOutcome.RECEIVED) - self.count(TaskOutcome.RETRIES_RECEIVED)

    def __sub__(self, earlier: Sample) -> Sample:
        """Return what was counted since an earlier look."""
        names = {*self.outcomes, *earlier.outcomes}
        return Sample(
            {name: self.outcomes.get(name, 0) - earlier.outcomes.get(name, 0) for name in names},
            self.runtime - earlier.runtime,
            self.queue_wait - earlier.queue_wait,
            self.sent - earlier.sent,
            self.publish_failures - earlier.publish_failures,
            {kind: amount - earlier.costs.get(kind, 0) for kind, amount in self.costs.items()},
        )


def sample_of(counts: Mapping[str, int], tasks: Collection[str] | None = None) -> Sample:
    """Return the sample of a side's counts in the lease store; of these tasks only, if given.

    What producers sent is counted without the task's name, so it is that of all tasks.
    """
    outcomes: Counter[str] = Counter()
    costs: Counter[str] = Counter()
    by_kind = {kind: [0] * (len(bounds) + 1) for kind, bounds in BUCKETS_S.items()}
    for name, count in counts.items():
        kind, _, rest = name.partition(":")
        what, _, task = rest.partition(":")
        if tasks is not None and task and task not in tasks:
            continue
        if kind == "outcome":
            if what == TaskOutcome.FIRST_RETRIED and task == CHORD_UNLOCK:
                # it waits, which is no fault of a broker's
                continue
            outcomes[what] += count
        elif kind == "cost":
            costs[what] += count
        elif kind in by_kind:
            by_kind[TaskDuration(kind)][int(what)] += count
    runtime, wait = (Histogram(BUCKETS_S[kind], tuple(by_kind[kind])) for kind in TaskDuration)
    spent = {kind: amount / MILLIONTHS for kind, amount in costs.items()}
    return Sample(outcomes, runtime, wait, counts.get("sent", 0), counts.get("publish_failures", 0), costs=spent)


def running_of(workers: Iterable[WorkerState], tasks: Collection[str] | None = None) -> Histogram:
    """Return how long the tasks that run now have taken; of these tasks only, if given."""
    counts = [one for worker in workers for task, one in worker.running.items() if tasks is None or task in tasks]
    return (
        Histogram(BUCKETS_S[TaskDuration.RUNTIME], tuple(map(sum, zip(*counts, strict=True))))
        if counts
        else empty(TaskDuration.RUNTIME)
    )


def tasks_in(counts: Mapping[str, int]) -> set[str]:
    """Return the names of the application's tasks that a side has received."""
    received = f"outcome:{TaskOutcome.RECEIVED}:"
    found = {name.removeprefix(received) for name, count in counts.items() if count and name.startswith(received)}
    return found - {SYNTHETIC}
