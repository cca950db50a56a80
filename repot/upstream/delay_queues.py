"""The queues in which RabbitMQ keeps delayed messages: kombu's since 5.5, and the same for kombu 5.4, which has none.

Processes of both releases share them, so that names, arguments and keys have to be the same.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kombu import Exchange, Queue

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

_kombu: Any
try:
    from kombu.transport import native_delayed_delivery as _kombu
except ImportError:
    _kombu = None

__all__ = [
    "BITS",
    "EXIT",
    "LAST_LEVEL",
    "POINTS",
    "bind_by_exchange",
    "declare",
    "delayed_key",
    "level_name",
    "queue_type",
]

_MODULE = "kombu.transport.native_delayed_delivery"
_BREAKS = "Processes with another kombu do not share the delayed messages, or cannot declare their queues."

POINTS = (
    Point(f"{_MODULE}:level_name", Failure.SILENT, _BREAKS, contains=('f"celery_delayed_{level}"',), since="5.5"),
    Point(
        f"{_MODULE}:declare_native_delayed_delivery_exchanges_and_queues",
        Failure.SILENT,
        _BREAKS,
        contains=(
            '"x-queue-type": queue_type, "x-overflow": "reject-publish", "x-message-ttl": pow(2, level) * 1000,',
            'queue_arguments["x-dead-letter-strategy"] = "at-least-once"',
            'routing_key: str = "1.#"',
            'routing_key = "0.#"',
        ),
        since="5.5",
    ),
    Point(
        f"{_MODULE}:bind_queue_to_native_delayed_delivery_exchange",
        Failure.SILENT,
        _BREAKS,
        contains=("queue.bind_to(exchange.name, routing_key=routing_key)",),
        since="5.5",
    ),
    Point(
        f"{_MODULE}:calculate_routing_key",
        Failure.SILENT,
        _BREAKS,
        contains=("'.'.join(",),
        since="5.5",
    ),
)

#: The words of a key that state a delay in seconds, one bit each.
BITS = 28
LAST_LEVEL = BITS - 1
#: The exchange that messages leave by.
EXIT = "celery_delayed_delivery"


_DELAYED = re.compile(rf"^(?:[01]\.){{{BITS}}}")


def level_name(level: int) -> str:
    """Return the name of the exchange and the queue of a bit."""
    return f"celery_delayed_{level}"


def delayed_key(seconds: int, key: str) -> str:
    """Return the key of a message that leaves after this many seconds, at least 1, with a key of its own.

    A retry has the key of the delivery before. kombu before 5.7 would put one delay before the other.
    """
    return f"{'.'.join(f'{seconds:0{BITS}b}')}.{_DELAYED.sub('', key, count=1)}"


def _declare(connection: Any, queue_type: str, levels: int = BITS) -> None:
    channel = connection.channel()
    # the shortest delay first: a level is of use, and found by a sender, once all below it are there
    out = Exchange(EXIT, type="topic").bind(channel)
    out.declare()
    for level in range(levels):
        name, upper = level_name(level), "*." * (LAST_LEVEL - level)
        Exchange(name, type="topic").bind(channel).declare()
        Exchange(_below(level), type="topic").bind(channel).bind_to(name, f"{upper}0.#")
        arguments = {
            "x-queue-type": queue_type,
            "x-overflow": "reject-publish",
            "x-message-ttl": 2**level * 1000,
            "x-dead-letter-exchange": _below(level),
        }
        if queue_type == "quorum":
            arguments["x-dead-letter-strategy"] = "at-least-once"
        queue = Queue(name, queue_arguments=arguments).bind(channel)
        queue.declare()
        queue.bind_to(name, f"{upper}1.#")


def _below(level: int) -> str:
    return level_name(level - 1) if level else EXIT


def _bind_by_exchange(connection: Any, queue: Queue) -> None:
    bound: Any = queue.bind(connection.channel())
    if bound.exchange:
        found = [(bound.exchange, bound.routing_key)]
    else:
        found = [(one.exchange, one.routing_key) for one in bound.bindings]
    for exchange, key in found:
        if exchange.type == "direct":
            continue
        pattern = key if key.startswith("#") else f"#.{key}"
        exchange.bind(connection.channel()).bind_to(EXIT, routing_key=pattern)
        bound.bind_to(exchange.name, routing_key=pattern)


def queue_type(app: Celery) -> str:
    """Return of which type the queues are, by the configuration; Celery 5.4 has no setting for it."""
    return str(app.conf.get("broker_native_delayed_delivery_queue_type") or "quorum")


def declare(connection: Any, queue_type: str, levels: int = BITS) -> None:
    """Declare what delays, of kombu's or py-amqp's connection.

    With fewer than all levels the others do not exist, and what a sender gives to one of them fails.
    """
    if _kombu is None or levels < BITS:
        _declare(connection, queue_type, levels)
    else:
        _kombu.declare_native_delayed_delivery_exchanges_and_queues(connection, queue_type)


#: `bind_by_exchange(connection, queue)`: bind a queue to the exit by way of its exchange, unless that is a direct one.
bind_by_exchange: Callable[[Any, Queue], None] = (
    _bind_by_exchange if _kombu is None else _kombu.bind_queue_to_native_delayed_delivery_exchange
)
