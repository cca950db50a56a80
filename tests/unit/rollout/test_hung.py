"""A hung pool differs from long runs by what the source did with the same tasks."""

from __future__ import annotations

from bisect import bisect_left

import pytest

from repot.rollout.hung import hung
from repot.rollout.judge import Criteria
from repot.routing.tally import WorkerState
from repot.worker.task_outcomes import BUCKETS_S, TaskDuration

BOUNDS = BUCKETS_S[TaskDuration.RUNTIME]
CRITERIA = Criteria(samples=50)


def worker(*running: tuple[str, float], side: str = "target", processes: int = 2, stalled_s: float = 0) -> WorkerState:
    counts: dict[str, list[int]] = {}
    for task, seconds in running:
        counts.setdefault(task, [0] * (len(BOUNDS) + 1))[bisect_left(BOUNDS, seconds)] += 1
    return WorkerState("celery@a", side, "running", ("orders",), processes, counts, stalled_s)


def counts_of(task: str, seconds: float, runs: int = 100) -> dict[str, int]:
    bucket = bisect_left(BOUNDS, seconds)
    return {f"outcome:received:{task}": runs, f"outcome:succeeded:{task}": runs, f"runtime:{bucket}:{task}": runs}


def found(target: WorkerState, counts: dict[str, int], *source: WorkerState) -> list[str]:
    return list(hung([target], source, counts, CRITERIA))


def test_a_pool_whose_every_process_runs_for_longer_than_the_source_ever_did_hangs() -> None:
    (why,) = found(worker(("charge", 6), ("charge", 8)), counts_of("charge", 0.2))
    assert "all 2 processes of celery@a run charge" in why


@pytest.mark.parametrize(
    "target",
    [
        worker(("charge", 4), ("charge", 60)),
        worker(("charge", 60)),
        worker(("charge", 60), ("other", 60)),
        worker(),
    ],
    ids=["one is young", "one process is free", "the source does not know the task", "nothing runs"],
)
def test_a_pool_with_one_process_that_may_be_healthy_does_not_hang(target: WorkerState) -> None:
    assert found(target, counts_of("charge", 0.2)) == []


def test_long_runs_that_the_source_has_as_well_are_no_fault() -> None:
    target = worker(("report", 1500), ("report", 1500))
    assert found(target, counts_of("report", 1400)) == []
    assert found(target, counts_of("report", 100))
    # those on the source have not ended yet
    assert found(target, counts_of("report", 100), worker(("report", 1500), side="source")) == []


def test_a_task_that_has_hardly_run_on_the_source_says_nothing() -> None:
    assert found(worker(("charge", 60), ("charge", 60)), counts_of("charge", 0.2, runs=49)) == []


def test_a_pool_that_holds_tasks_and_runs_none_hangs() -> None:
    assert found(worker(stalled_s=7), {}) == ["the pool of celery@a has finished nothing for 7 s"]
    assert found(worker(stalled_s=3), {}) == []
