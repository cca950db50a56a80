"""A worker's events and its replies to pings, sent without publisher confirms; both may get lost.

Bug of Celery: with `confirm_publish` they wait for RabbitMQ's confirms. The event loop sends an event every two
seconds; under a memory or disk alarm RabbitMQ confirms nothing, and kombu tries for ever: the worker stands still for
as long as the alarm lasts, although it can work without confirms. There is no setting for one connection of a worker.
"""

from __future__ import annotations

from typing import Any

from kombu import pools

from repot.upstream.point import Failure, Point

_BREAKS = "A worker stands still for as long as RabbitMQ has a memory or disk alarm."

POINTS = (
    Point(
        "celery.worker.consumer.events:Events.start",
        Failure.SILENT,
        _BREAKS,
        contains=("c.connection_for_write(",),
    ),
    Point(
        "celery.worker.consumer.consumer:Consumer.connection_for_write",
        Failure.LOUD,
        _BREAKS,
        "(self, url=None, heartbeat=None)",
        ("self.ensure_connected( self.app.connection_for_write(url=url, heartbeat=heartbeat))",),
        since="5.5",
    ),
    Point(
        "celery.worker.consumer.consumer:Consumer.connection_for_write",
        Failure.LOUD,
        _BREAKS,
        "(self, heartbeat=None)",
        ("self.ensure_connected( self.app.connection_for_write(heartbeat=heartbeat))",),
        until="5.5",
    ),
    Point("celery.app.control:Control.__init__", Failure.SILENT, _BREAKS, contains=("self.mailbox = self.Mailbox(",)),
    Point(
        "kombu.pidbox:Mailbox.producer_or_acquire",
        Failure.SILENT,
        _BREAKS,
        contains=("with self.producer_pool.acquire() as producer:",),
    ),
    Point(
        "kombu.transport.pyamqp:Transport.establish_connection",
        Failure.SILENT,
        _BREAKS,
        contains=("**conninfo.transport_options or {}",),
    ),
)


def send_events_unconfirmed(consumer: Any) -> None:
    """Let a worker's consumer send its events without confirms; before it connects."""

    def connection_for_write(url: Any = None, heartbeat: Any = None) -> Any:
        return consumer.ensure_connected(_unconfirmed(consumer.app.connection_for_write(url=url, heartbeat=heartbeat)))

    consumer.connection_for_write = connection_for_write


def send_replies_unconfirmed(consumer: Any) -> None:
    """Let a worker send its replies without confirms, to the server, of several, that it takes the pings from.

    The connection has no heartbeat, for nothing would send one on it.
    """
    replies = _unconfirmed(consumer.connection.clone(heartbeat=0))
    consumer.app.control.mailbox.producer_pool = pools.producers[replies]


def _unconfirmed(connection: Any) -> Any:
    connection.transport_options = {**(connection.transport_options or {}), "confirm_publish": False}
    return connection
