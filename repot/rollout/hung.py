"""Find workers whose pool hangs: they receive, report, and finish nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.rollout.samples import running_of, sample_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from repot.rollout.judge import Criteria
    from repot.routing.tally import WorkerState

#: A busy machine may hold all processes of a worker up for shorter.
_SHORTEST_S = 5.0


def hung(
    target: Iterable[WorkerState], source: Iterable[WorkerState], counts: Mapping[str, int], criteria: Criteria
) -> Iterator[str]:
    """Yield why workers of the target hang, by the workers' last reports and all counts of the source.

    A worker hangs if each of its processes runs its task for longer than `slowdown` times the longest run of that
    task on the source, and 5 s at least. One long run is an outlier, a whole pool of them is not. A task that has
    fewer runs on the source than a comparison needs says nothing. A pool that holds tasks and runs none hangs without
    a comparison.
    """
    source = list(source)
    for worker in target:
        if worker.stalled_s > _SHORTEST_S:
            yield f"the pool of {worker.node} has finished nothing for {worker.stalled_s:.0f} s"
            continue
        overdue = 0
        for task in worker.running:
            if usual := _longest(task, source, counts, criteria.samples):
                overdue += running_of([worker], {task}).above(max(_SHORTEST_S, usual * criteria.slowdown))
        if worker.processes and overdue >= worker.processes:
            tasks = ", ".join(worker.running)
            yield f"all {worker.processes} processes of {worker.node} run {tasks} for longer than the source ever did"


def _longest(task: str, source: Iterable[WorkerState], counts: Mapping[str, int], samples: int) -> float | None:
    """Return the upper bound of a task's longest run on the source; None if it is unknown."""
    ended, still = sample_of(counts, {task}), running_of(source, {task})
    bounds = [one.bound_of(1.0) for one in (ended.runtime, still) if one.total]
    known = [one for one in bounds if one is not None]
    return max(known) if ended.finished >= samples and len(known) == len(bounds) else None
