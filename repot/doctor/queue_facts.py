"""Read the queues that an application declares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repot.config.queues import is_delayed, natively_delayed
from repot.doctor.facts import QueueFacts
from repot.doctor.values import decode
from repot.worker.routing import RoutedAMQP

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from celery import Celery


def read_queues(document: Iterable[Mapping[str, Any]], delayed: Mapping[str, bool]) -> tuple[QueueFacts, ...]:
    """Return every queue of a document (`repot/upstream/collector.py`), including those that routing created."""
    return tuple(_queue(one, delayed.get(one["name"])) for one in document)


def delayed_by_repot(app: Celery) -> dict[str, bool]:
    """Return which queues' messages RabbitMQ delays, in an application that repot configured; empty for any other."""
    if not isinstance(app.amqp, RoutedAMQP):
        # Celery's rule applies
        return {}
    native = natively_delayed(app.amqp.queues.values())
    return {name: _is_delayed(queue, native) for name, queue in app.amqp.queues.items()}


def _queue(one: Mapping[str, Any], delayed: bool | None) -> QueueFacts:  # noqa: FBT001 - the answer
    arguments = decode(one["arguments"])
    return QueueFacts(
        **{
            **one,
            "kind": str(arguments.get("x-queue-type", "classic")),
            "arguments": arguments,
            "consumer_arguments": decode(one["consumer_arguments"]),
            "delayed": delayed,
        }
    )


def _is_delayed(queue: Any, native: set[str]) -> bool:  # noqa: ANN401 - kombu's queue
    by_name = is_delayed(queue) and (not queue.exchange or queue.exchange.type == "direct")
    return by_name or bool(queue.exchange and queue.exchange.name in native)
