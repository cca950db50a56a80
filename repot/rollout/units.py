"""What a side did by root id in a step, as its workers report it (`repot/worker/root_units.py`), by task."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from repot.worker.task_outcomes import SENT, RootUnit, TaskDuration

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

#: The name under which the root's own tasks are counted together, whatever their names.
ALL_TASKS = ""


@dataclass(frozen=True, slots=True)
class Units:
    """What roots did of one task.

    Attributes:
        counts: by `RootUnit`.
        durations: of each kind, how many are in each bucket of an exponential histogram.
    """

    counts: Mapping[str, float] = field(default_factory=Counter)
    durations: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    def count(self, unit: RootUnit) -> float:
        """Return how many roots were counted."""
        return self.counts.get(unit, 0)

    def of(self, kind: TaskDuration) -> Mapping[int, float]:
        """Return a histogram of durations."""
        return self.durations.get(kind, {})


def units_of(now: Mapping[str, int], before: Mapping[str, int], tasks: Collection[str]) -> dict[str, Units]:
    """Return by task what was counted since `before`, by the counts of a side in the lease store; of these tasks."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    durations: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: {str(kind): {} for kind in TaskDuration})
    for name, count in now.items():
        kind, _, rest = name.partition(":")
        group, _, duration = kind.partition("_")
        new = count - before.get(name, 0)
        if group != "units" or new <= 0:
            continue
        what, _, task = rest.partition(":")
        if task != ALL_TASKS and name_of(task) not in tasks:
            continue
        if duration:
            durations[task][duration][int(what)] = new
        else:
            counts[task][what] = new
    return {task: Units(found, durations[task]) for task, found in counts.items()}


def name_of(task: str) -> str:
    """Return the name of a task, also of one that other tasks sent."""
    return task.removeprefix(SENT)


def quantile(histogram: Mapping[int, float], share: float) -> int:
    """Return the number of the bucket that this share of the durations does not exceed; there is at least one."""
    places = sorted(histogram)
    wanted = share * sum(histogram.values())
    reached = accumulate(histogram[place] for place in places)
    return next((place for place, count in zip(places, reached, strict=True) if count >= wanted), places[-1])


def above(histogram: Mapping[int, float], bucket: int) -> float:
    """Return how many durations are in higher buckets."""
    return sum(count for place, count in histogram.items() if place > bucket)
