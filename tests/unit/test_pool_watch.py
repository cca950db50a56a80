"""What a worker sees of a pool whose processes die, take nothing or lose a result."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from repot.upstream import pool_process
from repot.worker import pool_watch
from repot.worker.pool_watch import STABLE_AFTER_S, PoolWatch, RunningTasks, mark_of


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands still until it is set."""
    now = [100.0]
    monkeypatch.setattr(pool_watch, "monotonic", lambda: now[0])
    return now


def test_processes_that_only_die(clock: list[float]) -> None:
    watch = PoolWatch(RunningTasks())
    assert watch.crash_loop([1, 2], progressed=False) == (None, 0)
    clock[0] += 1
    assert watch.crash_loop([3, 4], progressed=False) == (101, 2)
    clock[0] += 1
    assert watch.crash_loop([3, 5], progressed=False) == (101, 3)
    # one that ran a task does not die at its start, as under max_tasks_per_child=1
    assert watch.crash_loop([6, 7], progressed=True) == (None, 0)
    clock[0] += 1
    assert watch.crash_loop([6, 8], progressed=False) == (103, 1)
    clock[0] += STABLE_AFTER_S
    # 6 lives, so the pool can work
    assert watch.crash_loop([6, 9], progressed=False) == (None, 0)


def test_a_pool_that_holds_tasks_and_runs_none(clock: list[float]) -> None:
    watch = PoolWatch(RunningTasks())
    assert watch.idle_at(0, 0, progressed=False) is None
    assert watch.idle_at(0, 2, progressed=False) == 100
    clock[0] += 50
    assert watch.idle_at(0, 2, progressed=False) == 100
    assert watch.idle_at(1, 2, progressed=False) is None
    # tasks of milliseconds, none of which was caught in its run
    assert watch.idle_at(0, 2, progressed=True) is None


def test_a_result_that_does_not_arrive(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    running: dict[str, frozenset[int] | None] = {}
    monkeypatch.setattr(RunningTasks, "marks", lambda *_: running["now"])
    watch = PoolWatch(RunningTasks())
    requests = [SimpleNamespace(id=name, name="t") for name in "ab"]

    def missing(*names: str) -> tuple[str, float] | None:
        running["now"] = frozenset(map(mark_of, names))
        found = watch.missing_result(requests, 2)
        return (found.id, found.started_at) if found else None

    assert missing("a", "b") is None
    assert missing("b") == ("a", 100)
    clock[0] += 60
    assert missing() == ("a", 100)
    assert missing("a") == ("b", 160)
    # nothing is known of a pool that shares no memory
    running["now"] = None
    assert watch.missing_result(requests, 2) is None


def test_progress_is_a_task_that_ended() -> None:
    watch = PoolWatch(RunningTasks())
    assert not watch.progressed({})
    assert watch.progressed({"t": {"succeeded": 1, "received": 5}})
    assert not watch.progressed({"t": {"succeeded": 1, "received": 6}})
    assert watch.progressed({"t": {"succeeded": 1, "failed": 1}})


def test_a_process_says_what_it_runs_and_a_task_in_a_task_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    running = RunningTasks()
    running.begin("in the worker's own process")
    running.end()
    assert running.marks(2) is None
    monkeypatch.setattr(pool_process, "current_process", lambda: SimpleNamespace(index=1))
    running.begin("outer")
    running.begin("inner")
    running.end()
    assert frozenset({mark_of("outer"), 0}) == running.marks(2)
    running.end()
    assert frozenset({0}) == running.marks(2)
    # what one that was killed said is forgotten by the next in its place
    running.begin("killed")
    running.clear()
    assert frozenset({0}) == running.marks(2)
    assert running.marks(10_000) is None
