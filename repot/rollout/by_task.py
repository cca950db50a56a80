"""What each task did on both sides in a step, for people who read."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from repot.rollout.samples import tasks_in
from repot.rollout.units import Units, quantile, units_of
from repot.routing.side import Side
from repot.worker.task_outcomes import SENT, TaskDuration, TaskOutcome, bound_of

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Name of a duration -> its kind and quantile: what the judge compares.
_DURATIONS = {
    "runtime_p50_s": (TaskDuration.RUNTIME, 0.5),
    "runtime_p90_s": (TaskDuration.RUNTIME, 0.9),
    "queue_wait_p90_s": (TaskDuration.QUEUE_WAIT, 0.9),
}


def by_task(
    counts: Mapping[Side, Mapping[str, int]], first: Mapping[Side, Mapping[str, int]], most: int
) -> dict[str, Any]:
    """Return the busiest tasks since `first`, the busiest one first, with both sides' figures; and how many more."""
    names = {name for found in counts.values() for name in tasks_in(found)}
    outcomes = {side: _outcomes(counts[side], first[side]) for side in Side}
    units = {side: units_of(counts[side], first[side], names) for side in Side}

    def finished(side: Side, task: str) -> int:
        return outcomes[side][TaskOutcome.SUCCEEDED, task] + outcomes[side][TaskOutcome.FAILED, task]

    def figures(side: Side, task: str) -> dict[str, Any]:
        roots = [units[side][one] for one in (task, f"{SENT}{task}") if one in units[side]]
        return {
            "finished": finished(side, task),
            "failed": outcomes[side][TaskOutcome.FAILED, task],
            "retried": outcomes[side][TaskOutcome.RETRIED, task],
            **{name: _quantile(roots, *which) for name, which in _DURATIONS.items()},
        }

    # one that has not run in the step says nothing
    active = {task for found in outcomes.values() for (_, task), count in found.items() if count} & names
    ordered = sorted(active, key=lambda task: (-sum(finished(side, task) for side in Side), task))
    shown = [{"task": task, **{str(side): figures(side, task) for side in Side}} for task in ordered[:most]]
    return {"busiest": shown, "more": len(ordered) - len(shown)}


def _outcomes(counts: Mapping[str, int], first: Mapping[str, int]) -> Counter[tuple[str, str]]:
    """Return how many messages had which outcome since `first`, by outcome and task."""
    found: Counter[tuple[str, str]] = Counter()
    for name, count in counts.items():
        kind, _, rest = name.partition(":")
        if kind == "outcome":
            outcome, _, task = rest.partition(":")
            found[outcome, task] = count - first.get(name, 0)
    return found


def _quantile(roots: list[Units], kind: TaskDuration, share: float) -> float | None:
    """Return the bound of a share of the roots' durations; None without any."""
    histogram: Counter[int] = Counter()
    for one in roots:
        histogram.update(one.of(kind))  # type: ignore[arg-type]
    return float(f"{bound_of(quantile(histogram, share)):.2g}") if histogram else None
