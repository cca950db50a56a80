"""Give messages back to a queue of RabbitMQ without wearing them out.

Measured on 3.10, 4.0 and 4.3 (tests/servers/test_browse.py): since 4.0 a quorum queue counts each return, by
basic.reject, by a channel that closes and, before 4.3, by basic.nack, and drops a message returned more than 20 times.
Dead-letter queues that repot declares have no such limit. In other queues a message is replaced by a copy, with a count
of 0, long before it reaches the limit.
"""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

import amqp

from repot.brokers.message import Message, from_amqp, publish
from repot.errors import DeadlineExceeded
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: A queue that takes messages back has more of them within this time.
_GROWS_WITHIN_S = 10
#: RabbitMQ waits so long for a quorum queue's leader, and then says that there are no messages (`rabbit_quorum_queue`).
_LEADER_WITHIN_S = 0.25
#: A leader that is silent for longer may never come back.
_READY_WITHIN_S = 120
#: RabbitMQ's counts of returns; of a delivery, not of the message.
_COUNTS = ("x-delivery-count", "x-acquired-count")


def is_worn(delivery: Any, return_limit: int | None) -> bool:  # noqa: ANN401 - amqp.Message
    """Return whether a message was returned half as often as its queue allows; None is no limit."""
    return return_limit is not None and returns_of(delivery) >= return_limit // 2


def returns_of(delivery: Any) -> int:  # noqa: ANN401 - amqp.Message
    """Return how often a quorum queue has taken a message back; 0 for another queue's."""
    return returns_in(delivery.properties.get("application_headers") or {})


def returns_in(headers: Mapping[str, Any]) -> int:
    """Return the same by the headers of a message."""
    try:
        return int(headers.get("x-delivery-count", 0))
    except (TypeError, ValueError):
        return 0


def republish(
    channel: Any,  # noqa: ANN401 - amqp.Channel
    delivery: Any,  # noqa: ANN401 - amqp.Message
    queue: str,
) -> None:
    """Replace a message by a copy at the queue's end. `channel` confirms what is published.

    Raises:
        Unroutable: the queue takes no more messages, or is gone; the message stays unacknowledged.
        amqp.AMQPError, OSError: the connection failed.
    """
    move(channel, without_counts(from_amqp(delivery)), queue, delivery.delivery_tag)


def move(
    channel: Any,  # noqa: ANN401 - amqp.Channel
    message: Message,
    queue: str,
    tag: int,
    acknowledge: Callable[[int], None] | None = None,
) -> None:
    """Publish a message, then acknowledge the delivery `tag`: a process that dies in between leaves two, not none.

    `acknowledge` acknowledges the delivery where another channel received it.
    """
    publish(channel, message, queue)
    (acknowledge or channel.basic_ack)(tag)


def is_declared(connection: amqp.Connection, queue: str) -> bool:
    """Return whether there is a queue of this name."""
    return declared_count(connection, queue) is not None


def count_waiting(connection: amqp.Connection, queue: str) -> int | None:
    """Return how many messages wait in a queue; None if it is not declared.

    RabbitMQ says 0 of a quorum queue whose leader is away, or does not answer within 250 ms (`stat` in
    rabbit_quorum_queue.erl): such a 0 is asked of the queue itself, by basic.get.

    Raises:
        amqp.AMQPError, OSError: there was no answer.
    """
    counted = declared_count(connection, queue)
    if counted != 0:
        return counted
    own: Any = connection.channel()
    # a body is bytes, whatever its encoding
    own.auto_decode = False
    try:
        message = own.basic_get(queue)
    except amqp.ResourceLocked:
        # a quorum queue with a single active consumer has no basic.get
        return counted
    except amqp.NotFound as error:
        require_missing(error)
        return None
    counted = 0 if message is None else 1 + int(message.delivery_info["message_count"])
    if message is not None:
        own.basic_reject(message.delivery_tag, requeue=True)
        # an answer: it is in the queue again, which the channel's end does not wait for
        own.basic_qos(0, 0, False)
    own.close()
    return counted


def consumer_count(connection: amqp.Connection, queue: str) -> int | None:
    """Return how many consumers a queue has; None if it is not declared, 0 also while its leader is silent.

    Raises:
        amqp.AMQPError, OSError: there was no answer.
    """
    found = _declared(connection, queue)
    return None if found is None else int(found.consumer_count)


def await_ready(channel: Any, queue: str, count: int, own: int) -> None:  # noqa: ANN401 - amqp.Channel
    """Wait until so many messages of a queue are ready; RabbitMQ answers before a queue has taken back what was held.

    `own` consumers of it were cancelled; a quorum queue counts them until it has the messages. Others may take them at
    once, and a message may expire: then this ends without them.

    Raises:
        amqp.AMQPError, OSError: there was no answer.
    """
    most, grown_at = -1, monotonic()

    def is_over() -> bool:
        nonlocal most, grown_at
        asked_at = monotonic()
        declared = channel.queue_declare(queue, passive=True)
        is_silent = not declared.message_count and monotonic() - asked_at >= _LEADER_WITHIN_S
        if is_silent or declared.message_count > most:
            most, grown_at = max(most, declared.message_count), monotonic()
        return most >= count or declared.consumer_count > own or monotonic() - grown_at > _GROWS_WITHIN_S

    with suppress(DeadlineExceeded):
        wait_until(is_over, within_s=_READY_WITHIN_S, what="the messages are ready again")


def declared_count(connection: amqp.Connection, queue: str) -> int | None:
    """Return the same, and touch no message; 0 also for a quorum queue whose leader is silent."""
    found = _declared(connection, queue)
    return None if found is None else int(found.message_count)


def _declared(connection: amqp.Connection, queue: str) -> Any:  # noqa: ANN401 - py-amqp's counts
    """Return what RabbitMQ says of a queue by a passive declaration; None if it is not declared."""
    own: Any = connection.channel()
    try:
        found = own.queue_declare(queue, passive=True)
    except amqp.NotFound as error:
        require_missing(error)
        return None
    own.close()
    return found


def require_missing(error: amqp.NotFound) -> None:
    """Raise the error unless it says that there is no such queue.

    RabbitMQ answers 404 as well for a queue whose node is down, or that has crashed (`rabbit_amqqueue:absent`): it may
    hold messages.

    Raises:
        amqp.NotFound: it is such a queue.
    """
    if "no queue" not in str(error):
        raise error


def without_counts(message: Message) -> Message:
    """Return a message without RabbitMQ's counts of its deliveries."""
    if not any(name in message.headers for name in _COUNTS):
        return message
    headers = {name: value for name, value in message.headers.items() if name not in _COUNTS}
    return Message(message.body, message.content_type, message.content_encoding, headers, message.properties)
