"""What became of tasks, counted right in every pool.

A prefork child counts in memory that it shares with its worker, in a row of its own:
nothing is sent, nobody waits, and a child that is killed takes no count with it.
prometheus-client has such a mode, too, but one for the whole process, which an
application's own metrics would have to follow.
"""

from __future__ import annotations

import logging
import mmap
from bisect import bisect_left
from collections import deque
from itertools import repeat
from threading import Lock
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from billiard.exceptions import TimeLimitExceeded
from billiard.process import current_process
from celery import signals
from celery.app.trace import LOG_IGNORED
from celery.states import SUCCESS

from repot.deadletter import events as letters
from repot.idempotency import events
from repot.worker.outcomes import (
    BUCKETS_S,
    BURIED,
    DEDUPLICATED,
    FAILED,
    OTHER,
    OUTCOMES,
    QUEUE_WAIT,
    RECEIVED,
    REDELIVERED,
    RETRIED,
    RUNTIME,
    SUCCEEDED,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery import Celery

#: Rows: the worker's own, and one for each child; children beyond share the last.
_ROWS = 513
_CELL_BYTES = 8

_TRACE_LOG = logging.getLogger("celery.app.trace")


class Counts:
    """A table in memory that forked children share: a row a process; columns of a task are its outcomes and buckets."""

    def __init__(self, names: Iterable[str]) -> None:
        """Make room for these tasks."""
        known = (*sorted(names), OTHER)
        # the first column grows with every count of its row, so that rows without news need not be added up again
        columns = [(name, outcome) for name in known for outcome in OUTCOMES]
        self._column = {column: 1 + place for place, column in enumerate(columns)}
        self._width = 1 + len(columns)
        # of a histogram: a column for each bucket, one for what takes longer, and the sum in microseconds
        self._first_bucket: dict[tuple[str, str], int] = {}
        for name in known:
            for kind, bounds in BUCKETS_S.items():
                self._first_bucket[name, kind] = self._width
                self._width += len(bounds) + 2
        self._cells = memoryview(mmap.mmap(-1, _ROWS * self._width * _CELL_BYTES)).cast("Q")
        self._sums = [0] * self._width
        self._seen: dict[int, list[int]] = {}
        self.in_child()

    def in_child(self) -> None:
        """Take the row of this process.

        The state of the lock is forgotten: another thread of the parent may have held it in the moment of the fork.
        """
        self._lock = Lock()
        self._row_begins = self._width * _row()

    def add(self, name: str, outcome: str) -> None:
        """Count one; from any thread, and from any child."""
        column = self._column.get((name, outcome)) or self._column[OTHER, outcome]
        cells, begin = self._cells, self._row_begins
        with self._lock:
            cells[begin + column] += 1
            cells[begin] += 1

    def observe(self, name: str, kind: str, seconds: float) -> None:
        """Count a duration in a histogram; from any thread, and from any child."""
        first = self._first_bucket.get((name, kind)) or self._first_bucket[OTHER, kind]
        bounds = BUCKETS_S[kind]
        cells, begin = self._cells, self._row_begins + first
        microseconds = int(max(seconds, 0) * 1_000_000)
        with self._lock:
            cells[begin + bisect_left(bounds, seconds)] += 1
            cells[begin + len(bounds) + 1] += microseconds
            cells[self._row_begins] += 1

    def totals(self, processes: int) -> dict[str, dict[str, int]]:
        """The sums of all rows, by task and outcome; without tasks that were never seen."""
        sums = self._added_up(processes)
        found: dict[str, dict[str, int]] = {}
        for (name, outcome), column in self._column.items():
            if sums[column]:
                found.setdefault(name, dict.fromkeys(OUTCOMES, 0))[outcome] = sums[column]
        return found

    def histograms(self, processes: int) -> dict[str, dict[str, list[float]]]:
        """By kind and task: the count of each bucket, of what took longer, and last the sum in seconds."""
        sums = self._added_up(processes)
        found: dict[str, dict[str, list[float]]] = {kind: {} for kind in BUCKETS_S}
        for (name, kind), first in self._first_bucket.items():
            *counted, microseconds = sums[first : first + len(BUCKETS_S[kind]) + 2]
            if any(counted):
                found[kind][name] = [*counted, microseconds / 1_000_000]
        return found

    def _added_up(self, processes: int) -> list[int]:
        for row in range(min(max(processes + 1, len(self._seen)), _ROWS)):
            begin = row * self._width
            before = self._seen.get(row)
            if self._cells[begin] != (before[0] if before else 0):
                now = self._seen[row] = self._cells[begin : begin + self._width].tolist()
                self._sums = [
                    added + new - old for added, new, old in zip(self._sums, now, before or repeat(0), strict=False)
                ]
        return self._sums


def _row() -> int:
    """The row of this process: billiard gives a child that replaces another its place."""
    index = getattr(current_process(), "index", None)
    return 0 if index is None else min(index + 1, _ROWS - 1)


def count_tasks(app: Celery) -> Counts:
    """Count what becomes of the application's tasks from now on, in this process and its children."""
    counts = Counts(app.tasks)

    def received(request: Any, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
        counts.add(request.name, RECEIVED)
        if request.delivery_info.get("redelivered"):
            # the time of its first run is no wait
            counts.add(request.name, REDELIVERED)
        elif (waited_s := _queue_wait_s(request)) is not None:
            counts.observe(request.name, QUEUE_WAIT, waited_s)

    def retried(sender: Any, **_: Any) -> None:  # noqa: ANN401
        counts.add(sender.name, RETRIED)

    # Celery says twice that a task was killed at its hard limit (celery/worker/request.py: on_timeout, on_failure)
    killed: deque[str] = deque(maxlen=1000)

    def failed(sender: Any, task_id: str, exception: object, **_: Any) -> None:  # noqa: ANN401
        if isinstance(exception, TimeLimitExceeded):
            if task_id in killed:
                killed.remove(task_id)
                return
            killed.append(task_id)
        counts.add(sender.name, FAILED)

    # weak references would drop these local functions at once
    signals.task_received.connect(received, weak=False, dispatch_uid=f"repot-count-received-{id(counts)}")
    signals.task_failure.connect(failed, weak=False, dispatch_uid=f"repot-count-failed-{id(counts)}")
    signals.task_retry.connect(retried, weak=False, dispatch_uid=f"repot-count-retried-{id(counts)}")
    signals.worker_process_init.connect(
        lambda **_: counts.in_child(), weak=False, dispatch_uid=f"repot-count-child-{id(counts)}"
    )
    _time_runs(counts)
    _TRACE_LOG.addFilter(_Deduplicated(counts))
    _count_what_is_protected(counts)
    return counts


def _time_runs(counts: Counts) -> None:
    """Measure each run where it runs: a process that is killed tells of none.

    Success is counted at the same moment: each signal more costs a run that does nothing one percent.
    """
    began: dict[str, float] = {}

    def begins(task_id: str, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
        began[task_id] = monotonic()

    def ends(sender: Any, task_id: str, state: str | None = None, **_: Any) -> None:  # noqa: ANN401
        if state == SUCCESS:
            counts.add(sender.name, SUCCEEDED)
        since = began.pop(task_id, None)
        if since is not None:
            counts.observe(sender.name, RUNTIME, monotonic() - since)

    signals.task_prerun.connect(begins, weak=False, dispatch_uid=f"repot-count-begins-{id(counts)}")
    signals.task_postrun.connect(ends, weak=False, dispatch_uid=f"repot-count-ends-{id(counts)}")


def _queue_wait_s(request: Any) -> float | None:  # noqa: ANN401 - celery's Request
    """Seconds since a message was sent, or since it was due, by the clocks of both machines; None if it does not say.

    A worker that holds a task until its time has waited for no other reason: that is 0.
    """
    sent = request.message.properties.get("timestamp")
    if not isinstance(sent, int | float):
        return None
    if request.eta is not None:
        sent = max(sent, request.eta.timestamp())
    return float(max(time() - sent, 0))


def _count_what_is_protected(counts: Counts) -> None:
    """Hear what guards and the dead letters' writer say."""

    def happened(sender: str, what: str, **_: Any) -> None:  # noqa: ANN401 - the signals' arguments
        counts.add(sender, what)

    def buried(sender: str, **_: Any) -> None:  # noqa: ANN401
        counts.add(sender, BURIED)

    events.happened.connect(happened, weak=False, dispatch_uid=f"repot-count-guard-{id(counts)}")
    letters.buried.connect(buried, weak=False, dispatch_uid=f"repot-count-buried-{id(counts)}")


def sees_deduplicated() -> bool:
    """Whether Celery's skipping of a task is seen: it says so in its log alone, on level INFO."""
    return _TRACE_LOG.isEnabledFor(logging.INFO)


class _Deduplicated(logging.Filter):
    """Counts what Celery says it skips, and lets everything pass."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self._counts = counts

    def filter(self, record: logging.LogRecord) -> bool:
        if record.msg == LOG_IGNORED and isinstance(record.args, dict):
            description = str(record.args.get("description", ""))
            if "already completed" in description:
                self._counts.add(str(record.args.get("name", OTHER)), DEDUPLICATED)
        return True
