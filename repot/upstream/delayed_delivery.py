"""The step of Celery's worker that makes what delays, and binds queues to its exit.

It binds every queue the application knows, and those of them that do not exist on the broker make it log "Native
delayed delivery will not be available", which is not so. Celery 5.4 has no such step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.worker.consumer import Tasks

from repot.upstream import delay_queues
from repot.upstream.point import Failure, Point
from repot.upstream.prefetch_mode import has_quorum_queue

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

_Celerys: Any
try:
    from celery.worker.consumer.delayed_delivery import DelayedDelivery as _Celerys
except ImportError:
    _Celerys = None

__all__ = ["POINTS", "bind_queues_by", "on_set_up_error", "step_before"]

POINTS = (
    Point(
        "celery.worker.consumer.delayed_delivery:DelayedDelivery._setup_delayed_delivery",
        Failure.SILENT,
        "A worker does not bind its queues, and delayed tasks do not arrive.",
        contains=("self._bind_queues(c.app, connection)",),
        since="5.5",
    ),
    Point(
        "celery.worker.consumer.delayed_delivery:DelayedDelivery.start",
        Failure.SILENT,
        "A worker declares all 28 queues for delays, whatever WORKER_DELAY_LEVELS says.",
        contains=("self._setup_delayed_delivery, args=(c, broker_url),",),
        since="5.5",
    ),
)

#: The step after which one that calls `bind_queues_by` is made.
step_before: type[Any] = Tasks if _Celerys is None else _Celerys


def bind_queues_by(
    bind: Callable[[Celery, Any], None], consumer: Any, levels: int = delay_queues.BITS
) -> Callable[[], None]:
    """Let a worker's step `DelayedDelivery` bind queues by `bind(app, connection)`, and declare so many levels.

    The step has been made, and not yet asked whether it is needed. Returns what to call when the worker has connected,
    which does the work of the step where Celery has none.
    """
    app = consumer.app

    def declare(connection: Any) -> None:
        delay_queues.declare(connection, delay_queues.queue_type(app), levels)
        bind(app, connection)

    def set_up() -> None:
        with app.connection_for_write() as connection:
            if connection.transport.driver_type == "amqp" and has_quorum_queue(app):
                declare(connection)

    def set_up_of_celerys(_consumer: Any, url: str) -> None:
        with app.connection_for_write(url=url) as connection:
            declare(connection)

    if _Celerys is None:
        return set_up
    step = consumer.blueprint.steps[_Celerys.name]
    step._bind_queues = bind
    if levels < delay_queues.BITS:
        step._setup_delayed_delivery = set_up_of_celerys
    return lambda: None


def on_set_up_error(consumer: Any, call: Callable[[BaseException], None]) -> None:
    """Call `call(error)` before Celery's step logs an error of its own, and goes on; it may raise `SystemExit`."""
    step = None if _Celerys is None else consumer.blueprint.steps.get(_Celerys.name)
    if step is None:
        return
    set_up = step._setup_delayed_delivery

    def set_up_or_call(*arguments: Any) -> None:
        try:
            set_up(*arguments)
        except Exception as error:
            call(error)
            raise

    step._setup_delayed_delivery = set_up_or_call
