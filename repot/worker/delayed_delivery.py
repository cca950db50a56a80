"""Bind the worker's queues to the exit of RabbitMQ's delays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amqp import NotFound
from celery import bootsteps

from repot.config.delays import bind, levels_of
from repot.config.queues import is_delayed, natively_delayed
from repot.logs import get_logger
from repot.upstream.delayed_delivery import bind_queues_by, step_before
from repot.worker.configure import configured_with

if TYPE_CHECKING:
    from celery import Celery
    from kombu import Connection, Queue

log = get_logger(__name__)


class DelayStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Lets Celery's step, which declares the delays, bind queues as repot does."""

    name = "repot delays"
    requires = (step_before,)

    def __init__(self, parent: Any, **options: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """Patch Celery's step between its creation and its start."""
        super().__init__(parent, **options)
        self._set_up = bind_queues_by(bind_queues, parent, levels_of(configured_with(parent.app)))

    def start(self, parent: Any) -> None:  # noqa: ANN401, ARG002 - celery's Consumer
        """Do the work of Celery's step, in a release without it."""
        self._set_up()


def bind_queues(app: Celery, connection: Connection) -> None:
    """Bind all existing queues; declare missing ones that this worker consumes from."""
    queues = app.amqp.queues
    native = natively_delayed(list(queues.values()))
    for queue in list(queues.values()):
        try:
            if is_delayed(queue) and queue.name in queues.consume_from:
                _declare(queue, connection)
            bind(connection, queue, native)
        except NotFound:
            # its worker, or a sender of delayed tasks, declares and binds it
            log.debug("the queue %r does not exist and is not bound", queue.name)


def _declare(queue: Queue, connection: Connection) -> None:
    """Declare a queue here, because a bridge consumes it on another broker."""
    with connection.channel() as channel:
        queue(channel).declare()
