"""The worker's part in delays: binding its queues to where delayed messages come out."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from amqp import NotFound
from celery import bootsteps
from celery.worker.consumer.delayed_delivery import DelayedDelivery

from repot.config.delays import bind
from repot.config.queues import is_delayed, natively_delayed

if TYPE_CHECKING:
    from celery import Celery
    from kombu import Connection, Queue

log = logging.getLogger(__name__)


class DelayStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Has Celery's step, which makes what delays, bind queues in our way.

    Celery's own binds every queue the application knows, and those of them that do not exist on the broker made it
    say "Native delayed delivery will not be available", which was not so.
    """

    name = "repot delays"
    requires = (DelayedDelivery,)

    def __init__(self, parent: Any, **options: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """Celery's step has been made, and not yet asked whether it is needed."""
        super().__init__(parent, **options)
        parent.blueprint.steps[DelayedDelivery.name]._bind_queues = bind_queues  # noqa: SLF001 - no other way to say it


def bind_queues(app: Celery, connection: Connection) -> None:
    """Bind all queues that exist; those this worker consumes from are made where they do not."""
    queues = app.amqp.queues
    native = natively_delayed(list(queues.values()))
    for queue in list(queues.values()):
        try:
            if is_delayed(queue) and queue.name in queues.consume_from:
                _declare(queue, connection)
            bind(connection, queue, native)
        except NotFound:
            # it is bound by who makes it: its worker, or who sends a delayed task to it
            log.debug("the queue %r is not there to be bound", queue.name)


def _declare(queue: Queue, connection: Connection) -> None:
    """A bridge consumes on another broker."""
    with connection.channel() as channel:
        queue(channel).declare()
