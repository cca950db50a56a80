"""The options that kombu and py-amqp accept, which neither lists; `collector.py` reads them."""

from __future__ import annotations

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
