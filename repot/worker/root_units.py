"""Count for a rollout's judge by root id: what forty tasks of one chord do is one observation, and not forty.

A process of the pool writes what it sees into a ring in memory that it shares with its worker, as `task_counters` does
with counts: nothing is sent, and no process waits. The worker reads the rings, once a second. What a root does itself
is counted at once; for the tasks that it sent, and for messages that were delivered again, the store says whether the
root has been counted, because any worker may have seen it.
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from itertools import islice
from threading import Lock
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from celery import signals
from celery.states import FAILURE, RETRY, SUCCESS

from repot.deadletter import dead_letter_events
from repot.idempotency.guard_events import GuardEvent, guard_event
from repot.routing.synthetic import TASK as SYNTHETIC
from repot.upstream.failure_signal import once_a_failure
from repot.upstream.worker_state import active_requests
from repot.worker.pool_watch import mark_of
from repot.worker.task_counters import ROWS, queue_wait_s, row_of_process
from repot.worker.task_outcomes import OTHER, SENT, RootUnit, TaskDuration, bucket_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from repot.worker.receivers import Receivers

#: A process that writes more in a second than its ring takes loses the oldest.
_RING = 512
#: Hash of the root id, number of the task, bucket of a duration, number of the unit, flags.
_RECORD = struct.Struct("<QIhBB")
#: How much was written, and whether the process has run a task.
_HEAD = struct.Struct("<QQ")
_ROW_BYTES = _HEAD.size + _RING * _RECORD.size
_NO_BUCKET = -0x8000
#: Flags: the root itself; its message was delivered before; what is counted of a unit happened.
_OWN, _AGAIN, _HIT = 1, 2, 4
#: Tasks whose roots are remembered; a worker holds fewer.
_REMEMBERED = 10_000

#: Running tasks that are reported at most: a pool of green threads has thousands.
_MOST_RUNNING = 500

_UNITS = tuple(RootUnit)
#: What a unit may be beside, and its duration.
_HITS = {
    RootUnit.DELIVERED: RootUnit.REDELIVERED,
    RootUnit.TRIED: RootUnit.RETRIED,
    RootUnit.ENDED: RootUnit.FAILED,
}
_DURATIONS = {RootUnit.DELIVERED: TaskDuration.QUEUE_WAIT, RootUnit.TRIED: TaskDuration.RUNTIME}
#: Messages say in whole seconds when they were sent.
_WAIT_RESOLUTION_S = 1.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What a worker has seen of roots.

    Attributes:
        counts: to add.
        once: by what is to be counted once, the counts to add if the store has not seen it.
    """

    counts: Counter[str] = field(default_factory=Counter)
    once: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Root:
    hash: int
    flags: int
    is_retry: bool


class RootUnits:
    """Rings in memory that forked children share, one for each process."""

    def __init__(self, names: Iterable[str]) -> None:
        """Allocate the rings; `names` are the application's tasks."""
        self._names = (*sorted(names), OTHER)
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._memory = mmap.mmap(-1, ROWS * _ROW_BYTES)
        self._read = [0] * ROWS
        self._roots: OrderedDict[str, _Root] = OrderedDict()
        self._started_at: dict[str, float] = {}
        self.in_child()

    def in_child(self) -> None:
        """Use the ring of this process, and a new lock: at the fork another thread may have held the old one."""
        self._lock = Lock()
        self._row = _ROW_BYTES * row_of_process()

    def connect(self, receivers: Receivers) -> None:
        """Follow the tasks of this process and of its children."""
        receivers.connect(signals.task_received, self._received)
        receivers.connect(signals.task_prerun, self._prerun)
        receivers.connect(signals.task_postrun, self._postrun)
        receivers.connect(signals.task_failure, once_a_failure(self._failed))
        receivers.connect(signals.worker_process_init, lambda **_: self.in_child())
        receivers.connect(guard_event, self._guarded)
        receivers.connect(dead_letter_events.dead_lettered, self._dead_lettered)

    def drain(self, processes: int) -> Seen:
        """Return what was written since the last call, by the worker and this number of children."""
        seen = Seen()
        for row in range(min(processes + 1, ROWS)):
            for record in self._unread(row):
                self._add(seen, *record)
        return seen

    def running(self) -> dict[str, dict[str, float]]:
        """Return by task the roots whose tasks run in this worker, and for how many seconds the longest of each."""
        found: dict[str, dict[str, float]] = {}
        for request in islice(active_requests(), _MOST_RUNNING):
            if request.time_start is not None and request.name != SYNTHETIC:
                root = self._root_of(request.id)
                task = request.name if root.flags & _OWN else f"{SENT}{request.name}"
                roots, name = found.setdefault(task, {}), f"{root.hash:x}"
                roots[name] = max(roots.get(name, 0.0), round(time() - request.time_start, 1))
        return found

    def _unread(self, row: int) -> Iterator[tuple[int, int, int, int, int]]:
        begin = row * _ROW_BYTES
        written, _ = _HEAD.unpack_from(self._memory, begin)
        for place in range(max(self._read[row], written - _RING), written):
            yield _RECORD.unpack_from(self._memory, begin + _HEAD.size + place % _RING * _RECORD.size)
        self._read[row] = written

    def _add(self, seen: Seen, hash_: int, number: int, bucket: int, unit_number: int, flags: int) -> None:
        unit, task = _UNITS[unit_number], self._names[number] if flags & _OWN else f"{SENT}{self._names[number]}"
        found = [unit, *([_HITS[unit]] if flags & _HIT else [])]
        counted = [f"units:{one}:{task}" for one in found]
        if flags & _OWN:
            # of all tasks: the root's own, which is one for each root
            counted += [f"units:{one}:" for one in found]
        if bucket != _NO_BUCKET:
            counted.append(f"units_{_DURATIONS[unit]}:{bucket}:{task}")
        if unit in _HITS and flags & (_OWN | _AGAIN) == _OWN:
            seen.counts.update(counted)
        else:
            # a root may be both: delivered for the first time, and delivered again
            again = flags & _AGAIN if unit is RootUnit.DELIVERED else 0
            seen.once.setdefault(f"{unit_number}:{again}:{hash_:x}:{task}", tuple(counted))

    def _write(self, unit: RootUnit, task: str, root: _Root, bucket: int = _NO_BUCKET, *, hit: bool = False) -> None:
        if task == SYNTHETIC:
            return
        number = self._numbers.get(task, self._numbers[OTHER])
        flags = root.flags | (_HIT if hit else 0)
        with self._lock:
            written, warm = _HEAD.unpack_from(self._memory, self._row)
            if unit is RootUnit.TRIED and not warm:
                # a process loads and connects in its first run
                warm, bucket = 1, _NO_BUCKET
            place = self._row + _HEAD.size + written % _RING * _RECORD.size
            _RECORD.pack_into(self._memory, place, root.hash, number, bucket, _UNITS.index(unit), flags)
            _HEAD.pack_into(self._memory, self._row, written + 1, warm)

    def _remember(self, id_: str, root_id: str | None, *, again: bool, is_retry: bool) -> _Root:
        flags = (_OWN if root_id in (None, id_) else 0) | (_AGAIN if again else 0)
        root = _Root(mark_of(root_id or id_), flags, is_retry)
        with self._lock:
            self._roots[id_] = root
            if len(self._roots) > _REMEMBERED:
                self._roots.popitem(last=False)
        return root

    def _root_of(self, id_: str) -> _Root:
        """Return what is known of a task's root; of one that is unknown, that it may have been counted."""
        return self._roots.get(id_) or _Root(mark_of(id_), _AGAIN, is_retry=False)

    def _received(self, request: Any, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
        said, again = request.request_dict, bool(request.delivery_info.get("redelivered"))
        root = self._remember(request.id, said.get("root_id"), again=again, is_retry=bool(said.get("retries")))
        if not root.is_retry:
            waited_s = None if again else queue_wait_s(request)
            bucket = _NO_BUCKET if waited_s is None else bucket_of(max(waited_s, _WAIT_RESOLUTION_S))
            self._write(RootUnit.DELIVERED, request.name, root, bucket, hit=again)

    def _prerun(self, task_id: str, task: Any, **_: Any) -> None:  # noqa: ANN401
        request = task.request
        again = bool((request.delivery_info or {}).get("redelivered"))
        self._remember(task_id, request.root_id, again=again, is_retry=bool(request.retries))
        self._started_at[task_id] = monotonic()

    def _postrun(self, sender: Any, task_id: str, state: str | None = None, **_: Any) -> None:  # noqa: ANN401
        begin = self._started_at.pop(task_id, None)
        if begin is None:
            return
        root = self._root_of(task_id)
        if not root.is_retry:
            self._write(RootUnit.TRIED, sender.name, root, bucket_of(monotonic() - begin), hit=state == RETRY)
        if state in (SUCCESS, FAILURE):
            self._write(RootUnit.ENDED, sender.name, root, hit=state == FAILURE)

    def _failed(self, task: Any, task_id: str) -> None:  # noqa: ANN401
        """Count a task whose process was killed; one that raised has its end in its own process."""
        if task_id not in self._started_at:
            root = self._root_of(task_id)
            if not root.is_retry:
                self._write(RootUnit.TRIED, task.name, root)
            self._write(RootUnit.ENDED, task.name, root, hit=True)

    def _guarded(self, sender: str, event: str, task_id: str = "", **_: Any) -> None:  # noqa: ANN401
        if event == GuardEvent.UNKNOWN_OUTCOME:
            self._write(RootUnit.UNKNOWN_OUTCOME, sender, self._root_of(task_id))

    def _dead_lettered(self, sender: str, task_id: str = "", **_: Any) -> None:  # noqa: ANN401
        self._write(RootUnit.DEAD_LETTERED, sender, self._root_of(task_id))
