"""Which queue a message was delivered from: a message of kombu's does not say.

On RabbitMQ it names the consumer's tag, and kombu's `Consumer` knows the queue of a tag in private. On Redis it names
the exchange and routing key, by which kombu routed it itself.
"""

from __future__ import annotations

from typing import Any

from repot.logs import get_logger
from repot.upstream.point import Failure, Point

log = get_logger(__name__)

_BREAKS = "A dead letter goes to the dead-letter queue of another queue."

POINTS = (
    Point(
        "kombu.messaging:Consumer.__init__",
        Failure.LOUD,
        "A worker with dead letters fails at its first message.",
        contains=("self._active_tags = {}",),
    ),
    Point(
        "kombu.messaging:Consumer._add_tag", Failure.SILENT, _BREAKS, contains=("self._active_tags[queue.name] = tag",)
    ),
    Point(
        "kombu.transport.virtual.base:Channel._lookup",
        Failure.SILENT,
        _BREAKS,
        "(self, exchange, routing_key, default=None)",
    ),
)


def active_tags(consumer: Any) -> dict[str, str]:
    """Return the consumer tags of a kombu consumer by queue; empty without a consumer."""
    return consumer._active_tags if consumer is not None else {}


def routed_queues(channel: Any, exchange: str, key: str) -> list[str]:
    """Return the queues to which kombu routes a message; empty where the broker routes, or cannot be asked."""
    lookup = getattr(channel, "_lookup", None)
    if lookup is None or not exchange:
        return []
    try:
        return [str(name) for name in lookup(exchange, key)]
    except Exception:
        # the broker is away, or the channel closed
        log.debug("the bindings of %r could not be read", exchange, exc_info=True)
        return []
