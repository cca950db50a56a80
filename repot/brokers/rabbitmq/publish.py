"""Publish a batch of messages to a queue of RabbitMQ, with publisher confirms and `mandatory`.

py-amqp waits for each confirm before it publishes the next message; here up to `_WINDOW` messages wait for theirs. The
tag of the n-th message on a channel is n.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import amqp

from repot.brokers.message import to_amqp
from repot.brokers.publishing import CONFIRMED, Receipt, refused, unknown
from repot.upstream.confirming_channel import open_confirming_channel, publish_unconfirmed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repot.brokers.message import Message

_WINDOW = 500
#: 406 of a message that is larger than RabbitMQ takes: "message size 17 is larger than configured max size 16".
_MAX_SIZE = re.compile(r"larger than (?:configured )?max size (\d+)")


def publish(
    connection: amqp.Connection, queue: str, messages: Sequence[Message], timeout_s: float
) -> tuple[Receipt, ...]:
    """Send messages over a connection without `confirm_publish`; return a receipt for each.

    If a receipt is unknown, close the connection: its confirms may still come.

    Raises:
        amqp.AMQPError, OSError: the connection failed before anything was sent.
    """
    batch = _Batch(connection, queue, messages, timeout_s)
    reason = batch.send()
    if not reason:
        batch.close()
    return batch.receipts(reason)


class _Batch:
    def __init__(self, connection: amqp.Connection, queue: str, messages: Sequence[Message], timeout_s: float) -> None:
        self._connection = connection
        self._queue, self._messages, self._timeout_s = queue, messages, timeout_s
        self._sent = 0
        #: The numbers of messages that the broker has not answered for, in order.
        self._pending: dict[int, None] = {}
        self._receipts: dict[int, Receipt] = {}
        #: Returned messages come in the order in which they were sent: the search goes on from the last one.
        self._last_returned = -1
        self._channel = open_confirming_channel(connection, publish_unconfirmed, self)

    def send(self) -> str:
        """Publish everything and wait for the confirms; return why that failed, or an empty text."""
        try:
            for number, message in enumerate(self._messages):
                self._pending[number] = None
                self._sent = number + 1
                publish_unconfirmed(
                    self._channel, to_amqp(message), exchange="", routing_key=self._queue, mandatory=True
                )
                if len(self._pending) >= _WINDOW:
                    self._wait(_WINDOW // 2)
            self._wait(0)
        except TimeoutError:
            return f"RabbitMQ confirmed nothing for {self._timeout_s:g} s"
        except (amqp.AMQPError, OSError) as error:
            return f"RabbitMQ did not confirm it: {error}"
        return ""

    def close(self) -> None:
        """Close the channel."""
        with suppress(amqp.AMQPError, OSError):
            self._channel.close()

    def receipts(self, reason: str) -> tuple[Receipt, ...]:
        """Return a receipt for each message; `reason` is that of `send`."""
        limit = _MAX_SIZE.search(reason)
        for number in self._pending:
            too_large = limit and len(self._messages[number].body) > int(limit.group(1))
            self._receipts[number] = refused(reason) if too_large else unknown(reason)
        for number in range(self._sent, len(self._messages)):
            self._receipts[number] = refused(f"not sent: {reason}")
        return tuple(self._receipts[number] for number in range(len(self._messages)))

    def _wait(self, most: int) -> None:
        while len(self._pending) > most:
            self._connection.drain_events(timeout=self._timeout_s)

    def confirmed(self, tag: int, multiple: bool) -> None:  # noqa: FBT001 - py-amqp's signature
        """Note messages that the broker has."""
        for number in self._settled(tag, multiple):
            # a message that came back is confirmed as well
            self._receipts.setdefault(number, CONFIRMED)

    def nacked(self, tag: int, multiple: bool) -> None:  # noqa: FBT001
        """Note messages that the queue does not take."""
        for number in self._settled(tag, multiple):
            why = f"the queue {self._queue!r} takes no more messages"
            self._receipts[number] = refused(why)

    def returned(self, error: BaseException, exchange: str, key: str, message: Any) -> None:  # noqa: ANN401
        """Find the message that came back; its confirm follows."""
        del error, exchange, key
        body = message.body if isinstance(message.body, bytes) else str(message.body).encode()
        for number in range(self._last_returned + 1, self._sent):
            if number in self._pending and self._messages[number].body == body:
                self._receipts[number] = refused(f"there is no queue {self._queue!r}")
                self._last_returned = number
                return

    def _settled(self, tag: int, multiple: bool) -> list[int]:  # noqa: FBT001
        """Return the numbers that a confirm is about; RabbitMQ confirms many at once, and 0 means all."""
        meant = [one for one in self._pending if not tag or one < tag] if multiple else [tag - 1]
        found = [one for one in meant if one in self._pending]
        for one in found:
            del self._pending[one]
        return found
