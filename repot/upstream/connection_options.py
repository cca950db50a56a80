"""The options that kombu and py-amqp accept, which neither lists."""

from __future__ import annotations

import inspect
from typing import Any

from amqp.transport import SSLTransport
from kombu import Connection
from kombu.transport.base import to_rabbitmq_queue_arguments  # type: ignore[attr-defined]

from repot.upstream.point import Failure, Point

POINTS = (
    Point(
        "kombu.connection:Connection._init_params", Failure.LOUD, "The doctor cannot check the options of an address."
    ),
    Point("amqp.transport:SSLTransport._wrap_socket_sni", Failure.LOUD, "The doctor cannot check TLS options."),
    Point(
        "kombu.transport.base:to_rabbitmq_queue_arguments",
        Failure.LOUD,
        "The doctor cannot read a queue's arguments.",
        "(arguments, **options)",
    ),
)


def address_options() -> set[str]:
    """Return the names that may stand behind the ? of a broker's address."""
    return set(inspect.signature(Connection._init_params).parameters)  # type: ignore[attr-defined]


def tls_options() -> set[str]:
    """Return the names that py-amqp takes in `broker_use_ssl`."""
    return set(inspect.signature(SSLTransport.__dict__["_wrap_socket_sni"]).parameters)


def queue_arguments(queue: Any) -> dict[str, Any]:
    """Return the arguments with which a kombu queue is declared on RabbitMQ: its own, and those of its options."""
    return dict(
        to_rabbitmq_queue_arguments(
            dict(queue.queue_arguments or {}),
            expires=queue.expires,
            message_ttl=queue.message_ttl,
            max_length=queue.max_length,
            max_length_bytes=queue.max_length_bytes,
            max_priority=queue.max_priority,
        )
    )
