"""Going through a queue on RabbitMQ: there is no reading without taking, so what is kept is given back.

Measured on 3.10, 4.0 and 4.3 (tests/servers/test_sweep.py): since 4.0 a quorum queue
counts each return, by basic.reject, by a channel that closes and before 4.3 by
basic.nack, too, and drops a message returned more than 20 times. Dead-letter queues
that repot declares have no such limit. In others, a message is written anew, with a
count of nought, long before it comes to that.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import amqp
from amqp import spec

from repot.brokers.message import Message, from_amqp, publish
from repot.brokers.sweep import Discard, Forward, Keep, Swept
from repot.errors import DeadlineExceeded
from repot.waiting import wait_until

if TYPE_CHECKING:
    from repot.brokers.sweep import Decide

#: What is given back is there again in milliseconds, on a busy machine in some more.
_BACK_WITHIN_S = 2.0

#: How RabbitMQ says how often it took a message back; of a delivery, not of the message.
_COUNTS = ("x-delivery-count", "x-acquired-count")


def sweep(connection: amqp.Connection, queue: str, decide: Decide, limit: int | None) -> Swept:
    """Ask what to do with each message that waits now, the oldest first, and do it; then give back what is kept.

    `connection` confirms what is published; `limit` is the number of returns after
    which the queue drops a message. While this runs, nobody else sees what was taken.

    Raises:
        Unroutable: there is no queue to forward to; the message stays where it was.
        amqp.AMQPError, OSError: the connection failed; what was taken comes back by itself.
    """
    channel = connection.channel()
    # it would decode bodies
    channel.auto_decode = False
    waiting = _waiting(connection, queue)
    swept = Swept(missing=waiting is None)
    try:
        for _ in range(waiting or 0):
            found = channel.basic_get(queue)
            if found is None:
                break
            _act(channel, found, queue, decide, limit, swept)
    finally:
        # whatever failed, or was interrupted: all that is not acknowledged yet
        with suppress(amqp.AMQPError, OSError, DeadlineExceeded):
            if channel.is_open and swept.kept:
                channel.send_method(spec.Basic.Nack, "Lbb", (0, True, True))
                # so that whoever looks next sees them; unless somebody takes them at once
                wait_until(
                    lambda: (_waiting(connection, queue) or 0) >= swept.kept,
                    within_s=_BACK_WITHIN_S,
                    what="they are back",
                )
    return swept


def _act(channel: Any, found: Any, queue: str, decide: Decide, limit: int | None, swept: Swept) -> None:  # noqa: ANN401
    message = from_amqp(found)
    decision = decide(_without_counts(message))
    match decision:
        case Keep():
            swept.kept += 1
            if limit is not None and _returns(message) >= limit // 2:
                _move(channel, _without_counts(message), queue, found.delivery_tag)
        case Discard():
            channel.basic_ack(found.delivery_tag)
            swept.discarded += 1
        case Forward(changed, target):
            _move(channel, changed, target, found.delivery_tag)
            swept.forwarded += 1


def _move(channel: Any, message: Message, queue: str, tag: int) -> None:  # noqa: ANN401
    """Publish first and acknowledge then: whoever dies in between leaves two, not none."""
    publish(channel, message, queue)
    channel.basic_ack(tag)


def _waiting(connection: amqp.Connection, queue: str) -> int | None:
    """How many messages wait; None of a queue nobody declared."""
    own: Any = connection.channel()
    try:
        counted = own.queue_declare(queue, passive=True).message_count
    except amqp.NotFound:
        return None
    own.close()
    return int(counted)


def _returns(message: Message) -> int:
    try:
        return int(message.headers.get("x-delivery-count", 0))
    except (TypeError, ValueError):
        return 0


def _without_counts(message: Message) -> Message:
    headers = {name: value for name, value in message.headers.items() if name not in _COUNTS}
    return Message(message.body, message.content_type, message.content_encoding, headers, message.properties)
