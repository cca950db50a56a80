"""Read the queues that an application declares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repot.config.queues import is_delayed, natively_delayed
from repot.doctor.facts import QueueFacts
from repot.errors import ConfigInvalid
from repot.upstream.connection_options import queue_arguments
from repot.worker.routing import RoutedAMQP

if TYPE_CHECKING:
    from celery import Celery


def read_queues(app: Celery) -> tuple[QueueFacts, ...]:
    """Return every queue, including those that routing created.

    Raises:
        ConfigInvalid: `task_queues` has a type that Celery cannot read.
    """
    try:
        queues = app.amqp.queues
        configured = set(queues.consume_from)
        # Celery's rule applies unless repot configured the application
        native = natively_delayed(queues.values()) if isinstance(app.amqp, RoutedAMQP) else None
        return tuple(_queue(queue, native, configured=name in configured) for name, queue in queues.items())
    except (AttributeError, TypeError, ValueError) as error:
        message = f"task_queues cannot be read: {error}"
        raise ConfigInvalid(message, hint="Set a list of kombu.Queue, or a dictionary of their options.") from error


def _queue(queue: Any, native: set[str] | None, *, configured: bool) -> QueueFacts:  # noqa: ANN401 - kombu's queue
    arguments = queue_arguments(queue)
    exchange = queue.exchange
    return QueueFacts(
        name=queue.name,
        kind=str(arguments.get("x-queue-type", "classic")),
        exchange=exchange.name if exchange else "",
        exchange_type=exchange.type if exchange else "direct",
        routing_key=queue.routing_key or "",
        arguments=arguments,
        durable=bool(queue.durable),
        exchange_durable=bool(exchange.durable) if exchange else True,
        configured=configured,
        consumer_arguments=dict(queue.consumer_arguments or {}),
        delayed=None if native is None else _is_delayed(queue, native),
    )


def _is_delayed(queue: Any, native: set[str]) -> bool:  # noqa: ANN401 - kombu's queue
    by_name = is_delayed(queue) and (not queue.exchange or queue.exchange.type == "direct")
    return by_name or bool(queue.exchange and queue.exchange.name in native)
