"""Add up what the runs of tasks cost that state a price (`repot_cost`)."""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery import signals

from repot.idempotency.guard_events import GuardEvent, guard_event
from repot.logs import get_logger
from repot.upstream.skipped_tasks import on_skipped
from repot.worker.cost import Cost, CostKind

if TYPE_CHECKING:
    from celery import Celery

    from repot.worker.receivers import Receivers
    from repot.worker.task_counters import TaskCounters

log = get_logger(__name__)

#: A guarded task with none of these did not run.
_RAN = {GuardEvent.ACQUIRED, GuardEvent.UNGUARDED}
#: Why a process of the pool ended in the middle of a run.
_KILLS = (WorkerLostError, TimeLimitExceeded, Terminated)


def costs_of(app: Celery, counters: TaskCounters) -> Costs | None:
    """Return what adds up the costs of an application's tasks; None if none of them states a price."""
    prices = {name: price for name, task in app.tasks.items() if (price := price_of(task)) is not None}
    return Costs(counters, prices) if prices else None


def price_of(task: Any) -> Cost | None:  # noqa: ANN401 - Celery's Task
    """Return the price that a task states; None without one. A value that is no price is logged."""
    stated = getattr(task, "repot_cost", None)
    if stated is None or isinstance(stated, Cost):
        return stated
    try:
        return Cost(per_run=stated)
    except ValueError as error:
        log.error(  # noqa: TRY400 - the cause is in the text
            "the costs of %s are not counted: repot_cost is neither a number nor a repot.Cost: %s",
            task.name,
            error,
            extra={"action": "cost_invalid"},
        )
        return None


class Costs:
    """The costs of runs, in the worker and in each process of its pool."""

    def __init__(self, counters: TaskCounters, prices: dict[str, Cost]) -> None:
        """Add up in `counters`, by the prices of tasks."""
        self._counters, self._prices = counters, prices
        #: By id of the task that runs, what its guard has found.
        self._found: dict[str, set[str]] = {}
        #: Requests that the worker holds, by id.
        self._held: WeakValueDictionary[str, Any] = WeakValueDictionary()

    def connect(self, receivers: Receivers) -> None:
        """Follow Celery's signals."""
        receivers.connect(guard_event, self._guarded)
        receivers.add(on_skipped(self._prevented))
        # in the worker itself: its processes are killed without a signal of theirs
        receivers.connect(signals.task_received, self._received)
        receivers.connect(signals.task_retry, self._retried)
        receivers.connect(signals.task_failure, self._failed)

    def ended(self, task: Any, task_id: str, took_s: float) -> None:  # noqa: ANN401 - Celery's Task
        """Count a run that has ended in this process; call it while its request is the task's."""
        price, found = self._prices.get(task.name), self._found.pop(task_id, set())
        if price is None or (found and not found & _RAN):
            return
        amount = price.of(took_s)
        self._counters.spend(task.name, CostKind.SPENT, amount)
        # a guard knows whether there was a run before; a broker only whether there was a delivery
        is_first = GuardEvent.ACQUIRED in found or not (task.request.delivery_info or {}).get("redelivered")
        if GuardEvent.UNKNOWN_OUTCOME in found or not is_first:
            self._counters.spend(task.name, CostKind.REPEATED, amount)

    def _guarded(self, sender: str, event: str, task_id: str, **_: Any) -> None:  # noqa: ANN401 - the signal's arguments
        if sender in self._prices:
            self._found.setdefault(task_id, set()).add(event)
        if event == GuardEvent.PREVENTED:
            self._prevented(sender)

    def _received(self, request: Any, **_: Any) -> None:  # noqa: ANN401
        if request.name in self._prices:
            self._held[request.id] = request

    def _retried(self, sender: Any, request: Any, reason: Any, **_: Any) -> None:  # noqa: ANN401
        amount = self._killed(sender.name, request.id, getattr(reason, "exc", None))
        # Celery sends a new message, which no broker marks; a guard finds the run that was lost
        if amount and not hasattr(sender, "idempotency"):
            self._counters.spend(sender.name, CostKind.REPEATED, amount)

    def _failed(self, sender: Any, task_id: str, exception: object, **_: Any) -> None:  # noqa: ANN401
        self._killed(sender.name, task_id, exception)

    def _killed(self, name: str, task_id: str, cause: object) -> float:
        """Count a run whose process was killed, and return its cost."""
        request = self._held.pop(task_id, None) if isinstance(cause, _KILLS) else None
        if request is None or not request.time_start:
            return 0
        amount = self._prices[name].of(max(time() - request.time_start, 0))
        self._counters.spend(name, CostKind.SPENT, amount)
        return amount

    def _prevented(self, name: str) -> None:
        price = self._prices.get(name)
        if price is not None:
            mean = self._counters.mean_cost(name)
            self._counters.spend(name, CostKind.PREVENTED, price.per_run if mean is None else mean)
