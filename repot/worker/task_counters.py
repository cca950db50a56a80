"""Count the outcomes and durations of tasks, in every pool.

A prefork child counts in memory that it shares with its worker, in a row of its own:
nothing is sent, no process waits, and a killed child loses no counts. prometheus-client
has a multiprocess mode as well, but one for the whole process, which would also apply
to the application's own metrics.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from itertools import repeat
from threading import Lock
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from celery import signals
from celery.states import SUCCESS

from repot.deadletter import dead_letter_events
from repot.idempotency.guard_events import guard_event
from repot.upstream.failure_signal import once_a_failure
from repot.upstream.pool_process import process_index
from repot.upstream.skipped_tasks import on_skipped
from repot.worker.cost import MILLIONTHS, CostKind
from repot.worker.task_costs import costs_of
from repot.worker.task_outcomes import BUCKETS_S, OTHER, TaskDuration, TaskOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from celery import Celery

    from repot.worker.receivers import Receivers

#: Rows: the worker's own, and one for each child; children beyond this number share the last.
ROWS = 513
_CELL_BYTES = 8

_OUTCOMES = tuple(outcome.value for outcome in TaskOutcome)
_COSTS = tuple(kind.value for kind in CostKind)
#: How many runs have cost what was spent.
_RUNS = "runs"


class TaskCounters:
    """A table in memory that forked children share: one row for each process, columns for outcomes and buckets."""

    def __init__(self, names: Iterable[str]) -> None:
        """Allocate columns for these tasks."""
        known = (*sorted(names), OTHER)
        # the first column grows with every count of its row, so that unchanged rows need not be added up again
        outcomes = [(name, outcome.value) for name in known for outcome in TaskOutcome]
        costs = [(name, kind) for name in known for kind in (*_COSTS, _RUNS)]
        self._column = {column: index for index, column in enumerate(outcomes, start=1)}
        self._cost_column = {column: index for index, column in enumerate(costs, start=1 + len(outcomes))}
        self._width = 1 + len(outcomes) + len(costs)
        # a histogram has a column for each bucket, one for longer durations, and the sum in microseconds
        self._first_bucket: dict[tuple[str, str], int] = {}
        for name in known:
            for kind, bounds in BUCKETS_S.items():
                self._first_bucket[name, kind.value] = self._width
                self._width += len(bounds) + 2
        self._cells = memoryview(mmap.mmap(-1, ROWS * self._width * _CELL_BYTES)).cast("Q")
        self._sums = [0] * self._width
        self._seen: dict[int, list[int]] = {}
        #: The names, in the order in which they were first seen to have counts.
        self._order: dict[str, None] = {}
        self.in_child()

    def in_child(self) -> None:
        """Use the row of this process, and a new lock: a thread of the parent may have held the old one at the fork."""
        self._lock = Lock()
        self._row_begins = self._width * row_of_process()

    def add(self, name: str, outcome: str) -> None:
        """Count one outcome; from any thread and any child."""
        self._increase(self._column.get((name, outcome)) or self._column[OTHER, outcome], 1)

    def spend(self, name: str, kind: CostKind, amount: float) -> None:
        """Add to the cost of a task; from any thread and any child."""
        self._increase(self._cost_column_of(name, kind), round(amount * MILLIONTHS))
        if kind is CostKind.SPENT:
            self._increase(self._cost_column_of(name, _RUNS), 1)

    def _cost_column_of(self, name: str, kind: str) -> int:
        return self._cost_column.get((name, kind)) or self._cost_column[OTHER, kind]

    def _increase(self, column: int, amount: int) -> None:
        cells, begin = self._cells, self._row_begins
        with self._lock:
            cells[begin + column] += amount
            cells[begin] += 1

    def mean_cost(self, name: str) -> float | None:
        """Return what the runs of a task have cost in the mean, in all processes; None before the first."""
        spent, runs = (
            sum(self._cells[self._cost_column_of(name, kind) :: self._width]) for kind in (CostKind.SPENT, _RUNS)
        )
        return spent / MILLIONTHS / runs if runs else None

    def observe(self, name: str, kind: TaskDuration, seconds: float) -> None:
        """Count a duration in a histogram; from any thread and any child."""
        first = self._first_bucket.get((name, kind)) or self._first_bucket[OTHER, kind]
        bounds = BUCKETS_S[kind]
        cells, begin = self._cells, self._row_begins + first
        microseconds = int(max(seconds, 0) * 1_000_000)
        with self._lock:
            cells[begin + bisect_left(bounds, seconds)] += 1
            cells[begin + len(bounds) + 1] += microseconds
            cells[self._row_begins] += 1

    def changes(self, processes: int) -> int:
        """Return a number that grows with each count: while it stays, so does everything that is counted."""
        return self._added_up(processes)[0]

    def totals(self, processes: int) -> dict[str, dict[str, int]]:
        """Return the sums of all rows, by task and outcome, in the order in which tasks were first seen here."""
        sums = self._added_up(processes)
        by_task: dict[str, dict[str, int]] = {}
        for (name, outcome), column in self._column.items():
            if sums[column]:
                by_task.setdefault(name, dict.fromkeys(_OUTCOMES, 0))[outcome] = sums[column]
        self._order.update(dict.fromkeys(by_task))
        return {name: by_task[name] for name in self._order}

    def costs(self, processes: int) -> dict[str, dict[str, int]]:
        """Return the sums of costs in millionths, by task and `CostKind`; without tasks that have cost nothing."""
        sums = self._added_up(processes)
        found: dict[str, dict[str, int]] = {}
        for (name, kind), column in self._cost_column.items():
            if sums[column] and kind != _RUNS:
                found.setdefault(name, dict.fromkeys(_COSTS, 0))[kind] = sums[column]
        return found

    def histograms(self, processes: int) -> dict[str, dict[str, list[float]]]:
        """Return by kind and task: the count of each bucket, of longer durations, and last the sum in seconds."""
        sums = self._added_up(processes)
        found: dict[str, dict[str, list[float]]] = {kind.value: {} for kind in BUCKETS_S}
        for (name, kind), first in self._first_bucket.items():
            *counted, microseconds = sums[first : first + len(BUCKETS_S[TaskDuration(kind)]) + 2]
            if any(counted):
                found[kind][name] = [*counted, microseconds / 1_000_000]
        return found

    def _added_up(self, processes: int) -> list[int]:
        for row in range(min(max(processes + 1, len(self._seen)), ROWS)):
            begin = row * self._width
            before = self._seen.get(row)
            if self._cells[begin] != (before[0] if before else 0):
                now = self._seen[row] = self._cells[begin : begin + self._width].tolist()
                self._sums = [
                    added + new - old for added, new, old in zip(self._sums, now, before or repeat(0), strict=False)
                ]
        return self._sums


def row_of_process() -> int:
    """Return the row of this process: billiard gives a child that replaces another its index."""
    index = process_index()
    return 0 if index is None else min(index + 1, ROWS - 1)


def count_tasks(app: Celery, receivers: Receivers) -> TaskCounters:
    """Count the outcomes of the application's tasks by these receivers, in this process and its children."""
    counts = TaskCounters(app.tasks)

    def received(request: Any, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
        counts.add(request.name, TaskOutcome.RECEIVED)
        if request.request_dict.get("retries"):
            counts.add(request.name, TaskOutcome.RETRIES_RECEIVED)
        if request.delivery_info.get("redelivered"):
            # the time of its first run does not count as waiting
            counts.add(request.name, TaskOutcome.REDELIVERED)
        elif (waited_s := queue_wait_s(request)) is not None:
            counts.observe(request.name, TaskDuration.QUEUE_WAIT, waited_s)

    def failed(task: Any, _: str) -> None:  # noqa: ANN401
        counts.add(task.name, TaskOutcome.FAILED)

    receivers.connect(signals.task_received, received)
    receivers.connect(signals.task_failure, once_a_failure(failed))
    receivers.connect(signals.worker_process_init, lambda **_: counts.in_child())
    costs = costs_of(app, counts)
    if costs is None:
        _time_runs(counts, receivers)
    else:
        costs.connect(receivers)
        _time_runs(counts, receivers, costs.ended)
    receivers.add(on_skipped(lambda name: counts.add(name, TaskOutcome.DEDUPLICATED)))
    _count_retries(counts, receivers)
    _count_protected(counts, receivers)
    return counts


def _count_retries(counts: TaskCounters, receivers: Receivers) -> None:
    """Count the runs that end in a retry."""

    def retried(sender: Any, request: Any, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
        counts.add(sender.name, TaskOutcome.RETRIED)
        if not request.retries:
            counts.add(sender.name, TaskOutcome.FIRST_RETRIED)

    receivers.connect(signals.task_retry, retried)


def _time_runs(
    counts: TaskCounters, receivers: Receivers, ended: Callable[[Any, str, float], None] | None = None
) -> None:
    """Measure each run in its own process, and call `ended` with task, id and seconds; not the runs of a killed one.

    Success is counted in the same receiver: each further signal costs an empty task one percent.
    """
    started_at: dict[str, float] = {}

    def prerun(task_id: str, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
        started_at[task_id] = monotonic()

    def postrun(sender: Any, task_id: str, state: str | None = None, **_: Any) -> None:  # noqa: ANN401
        if state == SUCCESS:
            counts.add(sender.name, TaskOutcome.SUCCEEDED)
        begin = started_at.pop(task_id, None)
        if begin is None:
            return
        took_s = monotonic() - begin
        counts.observe(sender.name, TaskDuration.RUNTIME, took_s)
        if ended is not None:
            ended(sender, task_id, took_s)

    receivers.connect(signals.task_prerun, prerun)
    receivers.connect(signals.task_postrun, postrun)


def queue_wait_s(request: Any) -> float | None:  # noqa: ANN401 - celery's Request
    """Return the seconds since a message was sent, or since its ETA, by the clocks of both machines; at least 0.

    None if the message does not say when it was sent.
    """
    sent = request.message.properties.get("timestamp")
    if not isinstance(sent, int | float):
        return None
    if request.eta is not None:
        sent = max(sent, request.eta.timestamp())
    return float(max(time() - sent, 0))


def _count_protected(counts: TaskCounters, receivers: Receivers) -> None:
    """Count the events of guarded tasks and dead letters."""

    def guarded(sender: str, event: str, **_: Any) -> None:  # noqa: ANN401 - the signals' arguments
        counts.add(sender, event)

    def dead_lettered(sender: str, **_: Any) -> None:  # noqa: ANN401
        counts.add(sender, TaskOutcome.DEAD_LETTERED)

    receivers.connect(guard_event, guarded)
    receivers.connect(dead_letter_events.dead_lettered, dead_lettered)
