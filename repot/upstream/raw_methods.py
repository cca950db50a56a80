"""Methods of AMQP 0-9-1 that py-amqp does not offer, or offers with a wait that repot cannot afford.

- queue.declare of a queue that exists: `Channel.queue_declare` waits for the answer at once.
- basic.nack: py-amqp has no `basic_nack`; without it each message goes back by a basic.reject of its own.
- connection.close: `Connection.close` waits for the answer as long as the connection's own timeout, and kombu's
  `collect` closes the socket alone, which RabbitMQ logs as "client unexpectedly closed TCP connection".

They are sent by `AbstractChannel.send_method`, as py-amqp sends its own methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import amqp
from amqp import spec
from vine import promise

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Callable

_BREAKS = "`repot dlq` cannot give messages back, and each probe is a line in RabbitMQ's log."

POINTS = (
    Point(
        "amqp.abstract_channel:AbstractChannel.send_method",
        Failure.LOUD,
        _BREAKS,
        "(self, sig, format=None, args=None, content=None, wait=None, callback=None, returns_tuple=False)",
    ),
    Point(
        "amqp.abstract_channel:AbstractChannel.wait",
        Failure.LOUD,
        _BREAKS,
        "(self, method, callback=None, timeout=None, returns_tuple=False)",
    ),
    Point(
        "amqp.abstract_channel:AbstractChannel.dispatch_method",
        Failure.LOUD,
        "A move from RabbitMQ waits for ever after its first window.",
        contains=("self._pending.pop(method_sig)", "one_shot(method_sig, *args)"),
    ),
    Point(
        "amqp.channel:Channel.queue_declare",
        Failure.LOUD,
        "A move from RabbitMQ fails after its first window.",
        contains=("argsig='BsbbbbbF'", "(0, queue, passive, durable, exclusive, auto_delete,"),
    ),
    Point("amqp.spec:Basic.Nack", Failure.LOUD, _BREAKS),
    Point("amqp.spec:Connection.CloseOk", Failure.LOUD, _BREAKS),
)


def nack_all(channel: Any) -> None:
    """Give every message of a py-amqp channel that is not acknowledged back to its queue, with one basic.nack."""
    # delivery tag 0, multiple, requeue
    channel.send_method(spec.Basic.Nack, "Lbb", (0, True, True))


def ask_consumers(channel: Any, queue: str) -> Callable[[], int]:
    """Ask how many consumers a queue has, and return what waits for the answer.

    It comes after RabbitMQ has read everything that was sent on the channel before.

    Raises:
        amqp.AMQPError, OSError: of what is returned, amqp.NotFound if there is no such queue: the channel is closed.
    """
    answer = promise()
    # dispatched to it, if other code reads from the connection meanwhile
    channel._pending[spec.Queue.DeclareOk] = answer
    # passive
    channel.send_method(spec.Queue.Declare, "BsbbbbbF", (0, queue, True, False, False, False, False, {}))

    def wait() -> int:
        while not answer.ready:
            if (connection := channel.connection) is None:
                message = "the channel is closed"
                raise amqp.RecoverableConnectionError(message)
            connection.drain_events()
        (_, _, _, consumers), _ = answer.value
        return int(consumers)

    return wait


def close_politely(connection: Any, answer_within_s: float) -> None:
    """Send connection.close and wait for the answer for so many seconds; does nothing on another transport.

    RabbitMQ also logs the line above where the socket closes while it ends the channels: hence the wait. Raises the
    errors of the connection.
    """
    # kombu's virtual transports have no such method
    if connection.connected and (send := getattr(connection.connection, "send_method", None)):
        # reply code and text, class and method at fault
        send(spec.Connection.Close, "BsBB", (200, "", 0, 0))
        connection.connection.wait(spec.Connection.CloseOk, timeout=answer_within_s)
