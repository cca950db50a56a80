"""What became of tasks, counted right in every pool.

A prefork child counts in memory that it shares with its worker, in a row of its own:
nothing is sent, nobody waits, and a child that is killed takes no count with it.
prometheus-client has such a mode, too, but one for the whole process, which an
application's own metrics would have to follow.
"""

from __future__ import annotations

import logging
import mmap
from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Any

from billiard.exceptions import TimeLimitExceeded
from billiard.process import current_process
from celery import signals
from celery.app.trace import LOG_IGNORED

from repot.deadletter import events as letters
from repot.idempotency import events

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery import Celery

RECEIVED, REDELIVERED = "received", "redelivered"
SUCCEEDED, FAILED, RETRIED = "succeeded", "failed", "retried"
#: Skipped by Celery's own `worker_deduplicate_successful_tasks`.
DEDUPLICATED = "deduplicated"

#: Set aside as a dead letter.
BURIED = "dead_letters"

_OUTCOMES = (RECEIVED, REDELIVERED, SUCCEEDED, FAILED, RETRIED, DEDUPLICATED, *events.EVENTS, BURIED)
#: What is counted for tasks that nobody had registered when the worker started.
OTHER = "(other)"

#: Rows: the worker's own, and one for each child; children beyond share the last.
_ROWS = 513
_CELL_BYTES = 8

_TRACE_LOG = logging.getLogger("celery.app.trace")


class Counts:
    """A table in memory that forked children share: a row a process, a column for each task and outcome."""

    def __init__(self, names: Iterable[str]) -> None:
        """Make room for these tasks."""
        known = (*sorted(names), OTHER)
        self._column = {
            (name, outcome): 1 + place
            for place, (name, outcome) in enumerate((name, what) for name in known for what in _OUTCOMES)
        }
        # the first column grows with every count of its row, so that rows without news need not be added up again
        self._width = 1 + len(self._column)
        self._cells = memoryview(mmap.mmap(-1, _ROWS * self._width * _CELL_BYTES)).cast("Q")
        self._lock = Lock()
        self._seen: dict[int, tuple[int, list[int]]] = {}

    def add(self, name: str, outcome: str) -> None:
        """Count one; from any thread, and from any child."""
        column = self._column.get((name, outcome)) or self._column[OTHER, outcome]
        row = self._width * _row()
        with self._lock:
            self._cells[row + column] += 1
            self._cells[row] += 1

    def in_child(self) -> None:
        """Forget the state of the lock, which another thread of the parent may have held in the moment of the fork."""
        self._lock = Lock()

    def totals(self, processes: int) -> dict[str, dict[str, int]]:
        """The sums of all rows, by task and outcome; without tasks that were never seen."""
        sums = [0] * self._width
        for row in range(min(max(processes + 1, len(self._seen)), _ROWS)):
            sums = list(map(int.__add__, sums, self._read(row)))
        found: dict[str, dict[str, int]] = {}
        for (name, outcome), column in self._column.items():
            if sums[column]:
                found.setdefault(name, dict.fromkeys(_OUTCOMES, 0))[outcome] = sums[column]
        return found

    def _read(self, row: int) -> list[int]:
        begin = row * self._width
        version = self._cells[begin]
        seen = self._seen.get(row)
        if seen is None or seen[0] != version:
            seen = self._seen[row] = (version, self._cells[begin : begin + self._width].tolist())
        return seen[1]


def _row() -> int:
    """The row of this process: billiard gives a child that replaces another its place."""
    index = getattr(current_process(), "index", None)
    return 0 if index is None else min(index + 1, _ROWS - 1)


def count(app: Celery) -> Counts:
    """Count what becomes of the application's tasks from now on, in this process and its children."""
    counts = Counts(app.tasks)

    def received(request: Any, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
        counts.add(request.name, RECEIVED)
        if request.delivery_info.get("redelivered"):
            counts.add(request.name, REDELIVERED)

    def ended(outcome: str) -> Any:  # noqa: ANN401
        return lambda sender, **_: counts.add(sender.name, outcome)

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
    signals.task_success.connect(ended(SUCCEEDED), weak=False, dispatch_uid=f"repot-count-succeeded-{id(counts)}")
    signals.task_failure.connect(failed, weak=False, dispatch_uid=f"repot-count-failed-{id(counts)}")
    signals.task_retry.connect(ended(RETRIED), weak=False, dispatch_uid=f"repot-count-retried-{id(counts)}")
    signals.worker_process_init.connect(
        lambda **_: counts.in_child(), weak=False, dispatch_uid=f"repot-count-child-{id(counts)}"
    )
    _TRACE_LOG.addFilter(_Deduplicated(counts))
    _count_what_is_protected(counts)
    return counts


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
