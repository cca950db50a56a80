"""Publish a batch of messages to a queue of RabbitMQ, with publisher confirms and `mandatory`.

py-amqp waits for each confirm before it publishes the next message; here up to `_WINDOW` messages wait for theirs. The
tag of the n-th message on a channel is n. Messages that AMQP cannot express are refused, and have no tag.

A message that RabbitMQ returns has no tag either, and its confirm follows. It is recognised by its address and its
mark: its number in a move, else its task's id. Its body says nothing: tasks without arguments share one. While a
message with the same mark waits for its confirm, the next one is not sent.
"""

from __future__ import annotations

import re
from itertools import takewhile
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias

import amqp

from repot.brokers.headers import MOVE_HEADER
from repot.brokers.publishing import CONFIRMED, Receipt, refused, unknown
from repot.brokers.rabbitmq.frames import FrameWriter, LongerThanAFrame
from repot.config.delays import delayed_key, entry, levels_on
from repot.errors import ReturnUnrecognised
from repot.upstream.confirming_channel import open_confirming_channel, publish_unconfirmed, report_close_at_once
from repot.upstream.raw_frames import write_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from repot.brokers.moving import Outgoing

_WINDOW = 500
#: Frames are written together up to this length.
_WRITTEN_BYTES = 64 << 10
#: 406 of a message that is larger than RabbitMQ takes: "message size 17 is larger than configured max size 16".
_MAX_SIZE = re.compile(r"larger than (?:configured )?max size (\d+)")
#: Seconds between two calls of `on_wait`.
_SLICE_S = 1.0
#: A connection that has answered within this time counts as alive.
_FRESH_S = 0.2

#: Exchange, routing key, number in a move, and id of the task.
_Mark: TypeAlias = "tuple[str, str, str, str]"


class Publisher:
    """Publishes batches over one connection without `confirm_publish`, on one channel that is kept between them.

    Attributes:
        channel: None before the first batch.
        published: how many messages were published on it before the batch.
        is_blocked: whether RabbitMQ takes nothing over the connection (an alarm).
        is_spent: whether a batch has not ended as it should: its confirms may still come, and would count for another.
    """

    def __init__(self, connection: amqp.Connection) -> None:
        """Publish over a connection."""
        self.connection = connection
        connection.on_blocked = self._block  # type: ignore[attr-defined]
        connection.on_unblocked = self._unblock  # type: ignore[attr-defined]
        self.channel: Any = None
        self.published = 0
        self.is_blocked = self.is_spent = False
        self._batch: _Batch | None = None
        self._answered_at = 0.0
        self._levels: int | None = None

    def publish(
        self,
        outgoing: Sequence[Outgoing],
        timeout_s: float,
        on_wait: Callable[[], None] = lambda: None,
        on_sent: Callable[[], None] = lambda: None,
    ) -> tuple[Receipt, ...]:
        """Send messages; return a receipt for each.

        While RabbitMQ blocks the connection this waits, and calls `on_wait` about once a second; `on_sent` is called
        once, before it waits for the last confirms. If a receipt is unknown, close the connection: its confirms may
        still come.

        Raises:
            amqp.AMQPError, OSError: the connection failed before anything was sent.
            ReturnUnrecognised: RabbitMQ returned a message that was not sent here; which of them have arrived is
                unknown.
        """
        self._require_channel()
        if self._levels is None and any(one.delay_s > 0 for one in outgoing):
            self._levels = levels_on(self.connection)
        batch = self._batch = _Batch(self, outgoing, timeout_s, on_wait)
        self.is_spent = True
        reason = batch.send(on_sent)
        self.is_spent = bool(reason)
        self.published += batch.published
        self._answered_at = monotonic()
        return batch.receipts(reason)

    def _require_channel(self) -> None:
        """Open the channel; one that was idle has to answer: a batch that a dead connection takes would be unknown."""
        if self.channel is not None and not self.is_blocked and monotonic() - self._answered_at > _FRESH_S:
            self.channel.basic_qos(0, 0, False)
        if self.channel is None or self.channel.connection is None:
            self.channel, self.published = open_confirming_channel(self.connection, publish_unconfirmed, self), 0
            report_close_at_once(self.channel)

    def address_of(self, outgoing: Outgoing) -> tuple[str, str]:
        """Return the exchange and the routing key for a message: its queue's name, or that of the delays."""
        levels = self._levels
        key = delayed_key(outgoing.queue, outgoing.delay_s, levels) if levels and outgoing.delay_s > 0 else ""
        return (entry(levels), key) if levels and key else ("", outgoing.queue)

    def _block(self, reason: str) -> None:
        del reason
        self.is_blocked = True

    def _unblock(self) -> None:
        self.is_blocked = False

    def confirmed(self, tag: int, multiple: bool) -> None:  # noqa: FBT001 - py-amqp's signature
        """Note messages that the broker has."""
        assert self._batch is not None
        self._batch.confirmed(tag, multiple)

    def nacked(self, tag: int, multiple: bool) -> None:  # noqa: FBT001
        """Note messages that the queue does not take."""
        assert self._batch is not None
        self._batch.nacked(tag, multiple)

    def returned(self, error: BaseException, exchange: str, key: str, message: Any) -> None:  # noqa: ANN401
        """Find the message that came back; its confirm follows."""
        del error
        assert self._batch is not None
        self._batch.returned(exchange, key, message.headers or {})


def publisher_on(connection: amqp.Connection, kept: Publisher | None) -> Publisher:
    """Return the publisher that is kept, if it is one of this connection and not spent, else a new one."""
    if kept is not None and kept.connection is connection and not kept.is_spent:
        return kept
    return Publisher(connection)


class _Batch:
    def __init__(
        self, publisher: Publisher, outgoing: Sequence[Outgoing], timeout_s: float, on_wait: Callable[[], None]
    ) -> None:
        self._publisher, self._connection, self._channel = publisher, publisher.connection, publisher.channel
        self._before = publisher.published
        self._writer = FrameWriter(self._channel.channel_id, self._connection.frame_max)
        self._outgoing, self._timeout_s, self._on_wait = outgoing, timeout_s, on_wait
        self._sent = 0
        #: The numbers of messages that the broker has not answered for, in order, with their marks.
        self._pending: dict[int, _Mark] = {}
        #: The number of each message that was published, in order.
        self._numbers: list[int] = []
        self._receipts: dict[int, Receipt] = {}
        #: The number of each message that the broker has not answered for, by its mark.
        self._marks: dict[_Mark, int] = {}

    @property
    def published(self) -> int:
        """Return how many of the messages have a tag."""
        return len(self._numbers)

    def send(self, on_sent: Callable[[], None]) -> str:
        """Publish everything and wait for the confirms; return why that failed, or an empty text."""
        try:
            for start in range(0, len(self._outgoing), _WINDOW // 2):
                self._wait(_WINDOW // 2)
                self._publish(start, self._outgoing[start : start + _WINDOW // 2])
            on_sent()
            self._wait(0)
        except TimeoutError:
            return f"RabbitMQ confirmed nothing for {self._timeout_s:g} s"
        except amqp.ChannelError as error:
            # it is closed: its number is free for the next one
            self._channel.collect()
            return f"RabbitMQ did not confirm it: {error}"
        except (amqp.AMQPError, OSError) as error:
            return f"RabbitMQ did not confirm it: {error}"
        return ""

    def _publish(self, start: int, outgoing: Sequence[Outgoing]) -> None:
        if self._channel.connection is None:
            message = "the channel is closed"
            raise amqp.RecoverableConnectionError(message)
        frames: list[bytes] = []
        size = 0
        for number, one in enumerate(outgoing, start):
            exchange, key = self._publisher.address_of(one)
            mark = _mark(exchange, key, one.message.headers)
            if (same := self._marks.get(mark)) is not None:
                write_frames(self._connection, frames)
                size = 0
                self._wait_while(lambda same=same: same in self._pending)  # type: ignore[misc] # one for this message
            self._sent = number + 1
            try:
                frames.append(self._writer.publish(one.message, exchange, key))
            except ValueError as error:
                is_long = isinstance(error, LongerThanAFrame)
                self._receipts[number] = refused(str(error), is_too_large=is_long, is_unsupported=not is_long)
                continue
            self._pending[number], self._marks[mark] = mark, number
            self._numbers.append(number)
            size += len(frames[-1])
            if size >= _WRITTEN_BYTES:
                write_frames(self._connection, frames)
                size = 0
        write_frames(self._connection, frames)

    def receipts(self, reason: str) -> tuple[Receipt, ...]:
        """Return a receipt for each message; `reason` is that of `send`."""
        limit = _MAX_SIZE.search(reason)
        for number in self._pending:
            too_large = limit and len(self._outgoing[number].message.body) > int(limit.group(1))
            self._receipts[number] = refused(reason, is_too_large=True) if too_large else unknown(reason)
        for number in range(self._sent, len(self._outgoing)):
            self._receipts[number] = refused(f"not sent: {reason}")
        return tuple(self._receipts[number] for number in range(len(self._outgoing)))

    def _wait(self, most: int) -> None:
        self._wait_while(lambda: len(self._pending) > most)

    def _wait_while(self, goes_on: Callable[[], bool]) -> None:
        silent_s = 0.0
        while goes_on():
            waiting = len(self._pending)
            try:
                self._connection.drain_events(timeout=_SLICE_S)
            except TimeoutError:
                silent_s = 0 if self._publisher.is_blocked else silent_s + _SLICE_S
                if silent_s >= self._timeout_s:
                    raise
                self._on_wait()
            if len(self._pending) < waiting:
                silent_s = 0

    def confirmed(self, tag: int, multiple: bool) -> None:  # noqa: FBT001
        """Note messages that the broker has."""
        for number in self._settled(tag, multiple):
            # a message that came back is confirmed as well
            self._receipts.setdefault(number, CONFIRMED)

    def nacked(self, tag: int, multiple: bool) -> None:  # noqa: FBT001
        """Note messages that the queue does not take."""
        for number in self._settled(tag, multiple):
            why = f"the queue {self._outgoing[number].queue!r} takes no more messages"
            self._receipts[number] = refused(why)

    def returned(self, exchange: str, key: str, headers: Mapping[str, Any]) -> None:
        """Find the message that came back; its confirm follows."""
        number = self._marks.get(_mark(exchange, key, headers))
        if number is None:
            raise ReturnUnrecognised.to(key)
        self._receipts[number] = refused(f"there is no queue {self._outgoing[number].queue!r}")

    def _settled(self, tag: int, multiple: bool) -> list[int]:  # noqa: FBT001
        """Return the numbers that a confirm is about; RabbitMQ confirms many at once, and 0 means all."""
        last = self._numbers[tag - self._before - 1] if tag else self._sent
        meant = list(takewhile(lambda one: one <= last, self._pending)) if multiple else [last]
        confirmed = [one for one in meant if one in self._pending]
        for one in confirmed:
            del self._marks[self._pending.pop(one)]
        return confirmed


def _mark(exchange: str, key: str, headers: Mapping[str, Any]) -> _Mark:
    return exchange, key, str(headers.get(MOVE_HEADER)), str(headers.get("id"))
