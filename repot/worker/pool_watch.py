"""Detect the faults of a pool of processes that the worker's main process can see.

Three faults leave a worker that consumes, answers pings and runs nothing:

- its processes die as fast as they start, and Celery starts others for ever;
- it holds tasks, and no process takes one;
- a process has ended a task, and its result never arrives, so that the process gets no other task.

This module reports since when each has lasted; the probe decides how long is too long.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from hashlib import blake2b
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from celery import signals

from repot.upstream.pool_process import process_index
from repot.worker.status_file import Task
from repot.worker.task_outcomes import TaskOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from repot.worker.receivers import Receivers

#: A process that has lived for so long does not die at its start.
STABLE_AFTER_S = 5.0


_CELL_BYTES = 8
#: Processes beyond this number are not watched; the results of their tasks would seem to be missing.
_MAX_PROCESSES = 512

_ENDED = (TaskOutcome.SUCCEEDED, TaskOutcome.FAILED, TaskOutcome.RETRIED)


class RunningTasks:
    """The task that each process of a pool runs, in memory that forked children share with their worker."""

    def __init__(self) -> None:
        """Allocate a mark and a number of runs for each process."""
        self._marks = memoryview(mmap.mmap(-1, _MAX_PROCESSES * _CELL_BYTES)).cast("Q")
        self._runs = memoryview(mmap.mmap(-1, _MAX_PROCESSES * _CELL_BYTES)).cast("Q")
        # a task may run another within itself
        self._stack: list[int] = []

    @classmethod
    def of_this_process(cls, receivers: Receivers) -> Self:
        """Follow the tasks of this process and its children by these receivers."""
        running = cls()
        receivers.connect(signals.worker_process_init, lambda **_: running.clear())
        receivers.connect(signals.task_prerun, lambda task_id, **_: running.begin(task_id))
        receivers.connect(signals.task_postrun, lambda **_: running.end())
        return running

    def clear(self) -> None:
        """Forget the task of a killed process, in the process that replaces it."""
        self._stack = []
        self._store()

    def begin(self, task_id: str) -> None:
        """Record that this process runs a task."""
        self._stack.append(mark_of(task_id))
        self._store(1)

    def end(self) -> None:
        """Record that the task has ended, though its result may still have to be sent."""
        self._stack = self._stack[:-1]
        self._store()

    def marks(self, processes: int) -> frozenset[int] | None:
        """Return the marks of the running tasks; None if no process has run one yet, or there are too many."""
        if processes > _MAX_PROCESSES or not any(self._runs[:processes]):
            return None
        return frozenset(self._marks[:processes])

    def _store(self, runs: int = 0) -> None:
        index = process_index()
        if index is not None and index < _MAX_PROCESSES:
            self._marks[index] = self._stack[0] if self._stack else 0
            self._runs[index] += runs


def mark_of(task_id: str) -> int:
    """Return a number for a task's id that fits into one shared cell."""
    return int.from_bytes(blake2b(task_id.encode("utf-8", "replace"), digest_size=_CELL_BYTES).digest(), "big")


@dataclass(slots=True)
class PoolWatch:
    """Compares the state of a pool with its earlier states."""

    _running: RunningTasks
    _seen_at: dict[int, float] = field(default_factory=dict)
    _ended: int = 0
    _crash_loop_at: float | None = None
    _crashes: int = 0
    _idle_at: float | None = None
    _missing_at: dict[str, float] = field(default_factory=dict)

    def progressed(self, counts: Mapping[str, Mapping[str, int]]) -> bool:
        """Return whether a task has ended since the last call."""
        before = self._ended
        self._ended = sum(one.get(outcome, 0) for one in counts.values() for outcome in _ENDED)
        return self._ended != before

    def crash_loop(self, pids: Iterable[int], *, progressed: bool) -> tuple[float | None, int]:
        """Return since when its processes have only died, and how many; None while one of them lives or works."""
        now = monotonic()
        current = {pid: self._seen_at.get(pid, now) for pid in pids}
        gone = len(self._seen_at.keys() - current.keys())
        self._seen_at = current
        if progressed or any(now - seen_at >= STABLE_AFTER_S for seen_at in current.values()):
            self._crash_loop_at, self._crashes = None, 0
        elif gone:
            self._crash_loop_at = self._crash_loop_at or now
            self._crashes += gone
        return self._crash_loop_at, self._crashes

    def idle_at(self, active: int, reserved: int, *, progressed: bool) -> float | None:
        """Return since when it has held tasks and run none."""
        if active or not reserved or progressed:
            self._idle_at = None
        elif self._idle_at is None:
            self._idle_at = monotonic()
        return self._idle_at

    def missing_result(self, requests: Iterable[Any], processes: int) -> Task | None:
        """Return the task that ended longest ago and is still active; `started_at` is when that was noticed."""
        running = self._running.marks(processes)
        if running is None:
            return None
        now = monotonic()
        ended = {one.id: one for one in requests if mark_of(str(one.id)) not in running}
        self._missing_at = {task_id: self._missing_at.get(task_id, now) for task_id in ended}
        if not self._missing_at:
            return None
        oldest = min(self._missing_at, key=lambda task_id: self._missing_at[task_id])
        return Task(ended[oldest].name, oldest, self._missing_at[oldest], None)
