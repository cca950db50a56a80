"""Make a connection ready for one message: whatever fails then, fails before the message is sent.

kombu connects, opens a channel and selects confirms inside of `publish`, and does not look whether the server has
closed an idle connection meanwhile: an error there may mean that the message has left, or that nothing has.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import amqp
from amqp.exceptions import MessageNacked
from kombu.transport import redis
from redis.exceptions import InvalidResponse, ResponseError

from repot.upstream.point import Failure, Point
from repot.upstream.redis_connections import take_connection

if TYPE_CHECKING:
    from kombu import Connection

_BREAKS = "During a rollout, a task that did not reach the target raises an error, although the source could take it."

POINTS = (
    Point(
        "amqp.channel:Channel.basic_publish_confirm",
        Failure.SILENT,
        _BREAKS,
        contains=("if not self._confirm_selected:", "self.confirm_select()", "confirm_timeout or kwargs.get('timeout'"),
    ),
    Point(
        "amqp.connection:Connection.drain_events", Failure.SILENT, _BREAKS, contains=("self.blocking_read(timeout)",)
    ),
    Point(
        "kombu.connection:Connection._ensure_connection",
        Failure.SILENT,
        _BREAKS,
        contains=("if self.connected: return self._connection", "self.maybe_switch_next()"),
    ),
    Point(
        "kombu.utils.functional:retry_over_time",
        Failure.SILENT,
        _BREAKS,
        contains=("if max_retries is not None and retries >= max_retries: raise",),
    ),
    Point("kombu.transport.redis:Channel.pool", Failure.LOUD, _BREAKS, contains=("self._pool = self._get_pool()",)),
    Point(
        "redis.connection:ConnectionPool.get_connection",
        Failure.SILENT,
        _BREAKS,
        contains=("connection.connect()", "connection.can_read()"),
    ),
)


def make_ready(connection: Connection) -> Any:
    """Return the channel of a connection whose server is there; connects once to each server of its list if need be.

    Raises:
        Exception: the errors of the transport; nothing was sent.
    """
    pooled: Any = connection
    drop_if_closed(pooled)
    if not pooled.connected:
        pooled.ensure_connection(
            max_retries=max(len(pooled.alt or ()) - 1, 0), interval_start=0, interval_step=0, interval_max=0
        )
    channel: Any = pooled.default_channel
    if _is_of_rabbitmq(channel):
        if channel.connection.confirm_publish and not channel._confirm_selected:
            channel.confirm_select()
            channel._confirm_selected = True
    elif isinstance(channel, redis.Channel):
        # redis-py looks whether the server has closed the connection, and connects again
        channel.pool.release(take_connection(channel.pool))
    return channel


def drop_if_closed(connection: Connection) -> None:
    """Drop a connection that the server has closed while it was idle: kombu takes it for a good one."""
    pooled: Any = connection
    if pooled.connected and _is_closed(pooled):
        drop(pooled)


def drop(connection: Connection) -> None:
    """Close the socket without a word to the server, which may not answer; the next use connects again."""
    lost: Any = connection
    with suppress(Exception):
        lost.collect(0.1)


def was_refused(error: BaseException, connection: Any) -> bool:
    """Return whether an error of publishing is the broker's answer that it did not take the message."""
    if isinstance(error, InvalidResponse):
        # an answer, but not one that can be read
        return False
    return isinstance(error, (MessageNacked, *connection.channel_errors))


def is_usable_after(error: BaseException) -> bool:
    """Return whether a channel can publish again after a refusal.

    RabbitMQ closes it for most; after a returned message comes a confirm that the next one would take for its own.
    """
    return isinstance(error, (MessageNacked, ResponseError))


def _is_of_rabbitmq(channel: Any) -> bool:
    return isinstance(channel, amqp.Channel)


def _is_closed(connection: Any) -> bool:
    """Return whether RabbitMQ has closed a connection; redis-py looks for itself."""
    transport = connection.connection
    if not isinstance(transport, amqp.Connection):
        return False
    try:
        # what came meanwhile: a heartbeat, or the end
        for _ in range(100):
            transport.drain_events(timeout=0)
    except TimeoutError:
        return False
    except (OSError, amqp.AMQPError):
        return True
    return False
