"""The step of Celery's worker that makes what delays, and binds queues to its exit.

It binds every queue the application knows, and those of them that do not exist on the broker make it log "Native
delayed delivery will not be available", which is not so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.worker.consumer.delayed_delivery import DelayedDelivery

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

__all__ = ["POINTS", "DelayedDelivery", "bind_queues_by"]

POINTS = (
    Point(
        "celery.worker.consumer.delayed_delivery:DelayedDelivery._setup_delayed_delivery",
        Failure.SILENT,
        "A worker does not bind its queues, and delayed tasks do not arrive.",
        contains=("self._bind_queues(c.app, connection)",),
    ),
)


def bind_queues_by(bind: Callable[[Celery, Any], None], consumer: Any) -> None:
    """Let a worker's step `DelayedDelivery` bind queues by `bind(app, connection)`.

    The step has been made, and not yet asked whether it is needed.
    """
    consumer.blueprint.steps[DelayedDelivery.name]._bind_queues = bind
