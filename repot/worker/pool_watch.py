"""What is wrong with a pool of processes, as far as the worker's main process can see it.

Three faults leave a worker that consumes, answers pings and runs nothing:

- its processes die as fast as they start, and Celery starts others for ever;
- it holds tasks, and no process takes one;
- a process has ended a task, and its result never arrives, so that it gets no other.

This says since when each has been so; how long is too long is for the probe to say.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from hashlib import blake2b
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from billiard.process import current_process
from celery import signals

from repot.worker.outcomes import FAILED, RETRIED, SUCCEEDED
from repot.worker.pulse import Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: A process that has lived for so long does not die at its start.
LIVES_S = 5.0


_CELL_BYTES = 8
#: Processes beyond so many are not watched; their tasks would look lost.
_MOST_PROCESSES = 512


class RunningTasks:
    """What each process of a pool says it runs, in memory that forked children share with their worker."""

    def __init__(self) -> None:
        """Make room: a mark and a number of runs for each process."""
        self._marks = memoryview(mmap.mmap(-1, _MOST_PROCESSES * _CELL_BYTES)).cast("Q")
        self._runs = memoryview(mmap.mmap(-1, _MOST_PROCESSES * _CELL_BYTES)).cast("Q")
        # a task may run another in itself
        self._stack: list[int] = []

    @classmethod
    def hear(cls) -> Self:
        """Hear of the tasks of this process and its children from now on."""
        running = cls()
        name = f"repot-running-{id(running)}"
        # weak references would drop local functions at once
        signals.worker_process_init.connect(lambda **_: running.clear(), weak=False, dispatch_uid=name)
        signals.task_prerun.connect(lambda task_id, **_: running.begin(task_id), weak=False, dispatch_uid=name)
        signals.task_postrun.connect(lambda **_: running.end(), weak=False, dispatch_uid=name)
        return running

    def clear(self) -> None:
        """Forget what a process that was killed ran, in the one that takes its place."""
        self._stack = []
        self._say()

    def begin(self, task_id: str) -> None:
        """Say that this process runs a task."""
        self._stack.append(mark_of(task_id))
        self._say(1)

    def end(self) -> None:
        """Say that it is over, though its result may still have to be sent."""
        self._stack = self._stack[:-1]
        self._say()

    def marks(self, processes: int) -> frozenset[int] | None:
        """Return the marks of what is run; None where no process has been heard, or there are too many."""
        if processes > _MOST_PROCESSES or not any(self._runs[:processes]):
            return None
        return frozenset(self._marks[:processes])

    def _say(self, runs: int = 0) -> None:
        # billiard gives a process that replaces another its place; the worker's own process has none
        place = getattr(current_process(), "index", None)
        if place is not None and place < _MOST_PROCESSES:
            self._marks[place] = self._stack[0] if self._stack else 0
            self._runs[place] += runs


def mark_of(task_id: str) -> int:
    """Return a number for a task's id, to be shared in one cell."""
    return int.from_bytes(blake2b(task_id.encode(), digest_size=_CELL_BYTES).digest(), "big")


@dataclass(slots=True)
class PoolWatch:
    """Compares one look at a pool with those before."""

    _running: RunningTasks
    _born: dict[int, float] = field(default_factory=dict)
    _ended: int = 0
    _dying_since: float | None = None
    _deaths: int = 0
    _idle_since: float | None = None
    _lost: dict[str, float] = field(default_factory=dict)

    def progressed(self, counts: Mapping[str, Mapping[str, int]]) -> bool:
        """Return whether a task has ended since the last look."""
        before = self._ended
        self._ended = sum(one.get(how, 0) for one in counts.values() for how in (SUCCEEDED, FAILED, RETRIED))
        return self._ended != before

    def dying(self, pids: Iterable[int], *, progressed: bool) -> tuple[float | None, int]:
        """Return since when its processes have only died, and how many; None while one of them lives or works."""
        now = monotonic()
        current = {pid: self._born.get(pid, now) for pid in pids}
        gone = len(self._born.keys() - current.keys())
        self._born = current
        if progressed or any(now - born >= LIVES_S for born in current.values()):
            self._dying_since, self._deaths = None, 0
        elif gone:
            self._dying_since = self._dying_since or now
            self._deaths += gone
        return self._dying_since, self._deaths

    def idle_since(self, active: int, reserved: int, *, progressed: bool) -> float | None:
        """Return since when it has held tasks and run none."""
        if active or not reserved or progressed:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = monotonic()
        return self._idle_since

    def lost(self, requests: Iterable[Any], processes: int) -> Task | None:
        """Return the task that ended longest ago and is active all the same; `started` is when that was seen first."""
        running = self._running.marks(processes)
        if running is None:
            return None
        now = monotonic()
        ended = {one.id: one for one in requests if mark_of(str(one.id)) not in running}
        self._lost = {task_id: self._lost.get(task_id, now) for task_id in ended}
        if not self._lost:
            return None
        oldest = min(self._lost, key=lambda task_id: self._lost[task_id])
        return Task(ended[oldest].name, oldest, self._lost[oldest], None)
