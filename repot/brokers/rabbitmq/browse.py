"""Browse a queue on RabbitMQ: reading a message takes it from the queue, so what is kept is given back."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import amqp

from repot.brokers.browse import Browsed, Discard, Forward, Keep
from repot.brokers.message import from_amqp
from repot.brokers.rabbitmq.requeue import count_waiting, declared_count, is_worn, move, republish, without_counts
from repot.errors import DeadlineExceeded
from repot.upstream.raw_methods import nack_all
from repot.waiting import wait_until

if TYPE_CHECKING:
    from repot.brokers.browse import Decide

#: A message that is given back is in the queue within milliseconds, on a busy machine somewhat later.
_BACK_WITHIN_S = 2.0


def browse(connection: amqp.Connection, queue: str, decide: Decide, limit: int | None) -> Browsed:
    """Visit each message that waits now, the oldest first, do what `decide` returns, and give back what is kept.

    `connection` confirms what is published; `limit` is the number of returns after which the queue drops a message. No
    other client sees the messages meanwhile.

    Raises:
        Unroutable: there is no queue to forward to; the message stays where it was.
        amqp.AMQPError, OSError: the connection failed; what was taken comes back by itself.
    """
    channel = connection.channel()
    # a body is bytes, whatever its encoding
    channel.auto_decode = False
    waiting = count_waiting(connection, queue)
    browsed = Browsed(missing=waiting is None)
    try:
        for _ in range(waiting or 0):
            found = channel.basic_get(queue)
            if found is None:
                break
            _act(channel, found, queue, decide, limit, browsed)
    finally:
        # also after a failure or an interruption: everything that is not acknowledged
        with suppress(amqp.AMQPError, OSError, DeadlineExceeded):
            if channel.is_open and browsed.kept:
                nack_all(channel)
                # the next client sees them, unless a consumer takes them at once; looking takes none away from it
                wait_until(
                    lambda: (declared_count(connection, queue) or 0) >= browsed.kept,
                    within_s=_BACK_WITHIN_S,
                    what="they are back",
                )
    return browsed


def _act(channel: Any, found: Any, queue: str, decide: Decide, limit: int | None, browsed: Browsed) -> None:  # noqa: ANN401
    decision = decide(without_counts(from_amqp(found)))
    match decision:
        case Keep():
            browsed.kept += 1
            if is_worn(found, limit):
                republish(channel, found, queue)
        case Discard():
            channel.basic_ack(found.delivery_tag)
            browsed.discarded += 1
        case Forward(changed, target):
            move(channel, changed, target, found.delivery_tag)
            browsed.forwarded += 1
