"""Read a queue on RabbitMQ window by window over one consumer, and hold it for one mover.

The prefetch is two windows: RabbitMQ sends the next one while the last is written elsewhere. What is not acknowledged
when the connection ends is in the queue again, where it was.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias

import amqp

from repot.brokers.closing import leave
from repot.brokers.moving import QueueHold, QueueReader
from repot.brokers.rabbitmq.deliveries import Delivery, of_py_amqp, read_deliveries
from repot.brokers.rabbitmq.requeue import (
    await_ready,
    consumer_count,
    count_waiting,
    is_declared,
    move,
    require_missing,
    returns_in,
    without_counts,
)
from repot.brokers.reservation import Reservation, TakenMessage
from repot.config.delays import delayed_queue_of
from repot.errors import AlreadyMoving, BrokerUnreachable, ReservationLost, Unroutable
from repot.upstream.raw_frames import read_first
from repot.upstream.raw_methods import ask_consumers, nack_all
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from kombu import Connection

    from repot.brokers.headers import MovedBy
    from repot.brokers.message import Message

Errors: TypeAlias = "Callable[[], AbstractContextManager[None]]"
Find: TypeAlias = "Callable[[str], str]"

#: RabbitMQ hands out within this time what it counts as waiting, and answers a connection that is closed.
_ARRIVE_WITHIN_S = 1.0
#: What a connection that failed raises; py-amqp's closed channel has no connection.
_FAILURES = (amqp.AMQPError, OSError, AttributeError)
#: A pause between two deliveries of a consumer with free prefetch; longer, and no message waits.
_PAUSE_S = 0.05
#: A quorum queue takes a prefetch of 0, which is no limit, for 2,000.
_MAX_PREFETCH = 65_535
#: An older count of consumers is asked again, as after a pause of the move.
_COUNTED_WITHIN_S = 0.2
#: A message that its queue may still return so often is replaced by a copy.
_RETURNS_LEFT = 3


class RabbitReader(QueueReader):
    """A consumer on a connection of its own, which subscribes with the first window."""

    def __init__(
        self, connect: Callable[[], Connection], queue: str, window: int, return_limit: int | None, errors: Errors
    ) -> None:
        """Read by connections that `connect` opens, which confirm what is published.

        `return_limit` is the number of returns after which the queue drops a message; None without a limit.
        """
        self._queues: tuple[str, ...] = (queue,)
        self._connect, self._queue, self._limit, self._errors = connect, queue, return_limit, errors
        self.window = window
        self._connection: Connection | None = None
        self._channel: Any = None
        #: By their numbers.
        self._channels: dict[int, Any] = {}
        self._arrived: deque[Delivery] = deque()
        #: Messages that the last channel holds to the end.
        self._held = 0
        #: Messages that had arrived, or were on their way, when it closed.
        self._late = 0
        self._has_acknowledged = False
        self._counts_consumers = False
        #: Waits for the count that was asked with the last acknowledgement, and when that was.
        self._asked: tuple[Callable[[], int], float] | None = None

    def open(self) -> amqp.Connection:
        """Subscribe unless that is done; return the connection, which is dead once RabbitMQ hears nothing for a lease.

        Raises:
            BrokerUnreachable: RabbitMQ did not answer.
        """
        with self._errors():
            if self._connection is None:
                self._subscribe()
            assert self._connection is not None
            established: amqp.Connection = self._connection.connection
            return established

    @property
    def is_open(self) -> bool:
        """Return whether it has subscribed; what it held when it closed is in the queue again."""
        return self._connection is not None

    def consumers_of(self, queue: str) -> int:
        """Return how many consumers of a queue are its own."""
        return len(self._channels) if queue in self._queues else 0

    @property
    def _has_one_channel(self) -> bool:
        return list(self._channels.values()) == [self._channel]

    def count_consumers(self, queue: str) -> int | None:
        """Return how many consumers a queue has, its own among them; None if it is not declared.

        It may be as old as the last acknowledgement, with which it is asked: a quorum queue takes its time to answer.
        It is 0 as well while the queue's leader is silent.

        Raises:
            amqp.AMQPError, OSError: there was no answer.
        """
        assert self._connection is not None
        if not self._has_one_channel or queue not in self._queues:
            return consumer_count(self._connection.connection, queue)
        self._counts_consumers = True
        answer, asked_at = self._asked or (ask_consumers(self._channel, queue), monotonic())
        self._asked = None
        is_recent = monotonic() - asked_at < _COUNTED_WITHIN_S
        try:
            found = answer()
            if not is_recent:
                # answers come in the order of their questions
                found = ask_consumers(self._channel, queue)()
        except amqp.NotFound as error:
            self.close()
            require_missing(error)
            return None
        # an answer on the channel of the deliveries: RabbitMQ has read their acknowledgements
        self._has_acknowledged = False
        return found

    def taken(self, name: str, delivery: Delivery) -> TakenMessage:
        """Return a delivery as a message of a reservation."""
        return TakenMessage(name, without_counts(delivery.message), delivery.is_redelivered)

    def take(self, limit: int, name: str) -> Reservation:
        """Wait until a window has arrived, or no message waits."""
        del name
        # the prefetch is two windows: with more RabbitMQ sends no further one
        limit = min(limit, self.window or limit)
        with self._errors():
            if self._connection is None:
                self._subscribe()
            elif self._has_acknowledged:
                self._answer()
            self._receive(limit)
        taken = [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]
        return _Window(self, self._channels, taken)

    def scan(self) -> Iterator[Message]:
        """Yield all messages, hold them, and give them back at the end; a window of 0 is no limit of the prefetch.

        The queue has them back when this ends.
        """
        looked = 0
        try:
            with self._errors():
                self._subscribe()
            while self._connection is not None:
                with self._errors():
                    self._receive(1)
                    is_full = self._connection is not None and not self._arrived and self._held >= _MAX_PREFETCH
                    if is_full:
                        self._held = 0
                        self._consume()
                if not self._arrived and not is_full:
                    return
                while self._arrived:
                    self._held += 1
                    looked += 1
                    yield without_counts(self._arrived.popleft().message)
        finally:
            self._close(looked)

    def keep_alive(self) -> None:
        """Ask for an answer, which shows RabbitMQ that the connection lives."""
        if self._connection is not None:
            with self._errors():
                self._answer()

    def close(self) -> None:
        """Give back everything at once, in one step."""
        self._close(0)

    def _close(self, looked: int) -> None:
        """Close; wait until the queue has these back and what arrived after them, if no other consumer takes them."""
        connection, self._connection = self._connection, None
        channels, self._channels = self._channels, {}
        self._asked = None
        self._late = len(self._arrived)
        self._arrived.clear()
        if connection is None:
            return
        with suppress(*_FAILURES):
            # a channel more for a scan alone
            own: Any = connection.connection.channel() if looked else None
            before = own and own.queue_declare(self._queue, passive=True)
            for channel in channels.values():
                for queue in self._queues:
                    channel.basic_cancel(f"mover.{queue}")
                nack_all(channel)
                channel.basic_qos(0, 0, False)
            if before is not None and before.consumer_count <= len(channels):
                await_ready(own, self._queue, before.message_count + looked + self._late, len(channels))
        leave(connection, _ARRIVE_WITHIN_S)

    def acknowledge(self, channels: Mapping[int, Any], deliveries: Sequence[Delivery], *, in_order: bool) -> None:
        """Acknowledge deliveries of these channels; `in_order` if they are all up to the last one.

        The next `take` waits until RabbitMQ has read that. Those of an earlier connection have the same numbers, and
        are closed.
        """
        if in_order:
            channels[deliveries[-1].channel].basic_ack(deliveries[-1].tag, multiple=True)
        else:
            for one in deliveries:
                channels[one.channel].basic_ack(one.tag)
        self._has_acknowledged = True
        if self._asked is not None:
            # the answer that is on its way says nothing of these
            self._asked = self._asked[0], -math.inf
        elif self._counts_consumers and self._has_one_channel:
            self._asked = ask_consumers(self._channel, self._queue), monotonic()

    def _answer(self) -> None:
        # an answer on the same channel: RabbitMQ has read what was sent before
        self._has_acknowledged = False
        for channel in self._channels.values():
            channel.basic_qos(0, 2 * self.window or _MAX_PREFETCH, False)

    def _subscribe(self) -> None:
        self._connection = self._connect()
        established = self._connection.connection
        self._queues = tuple(one for one in self._queues if is_declared(established, one))
        if not self._queues:
            return
        read_first(established, read_deliveries, self._arrive)
        self._consume()

    def _consume(self) -> None:
        """Consume on a new channel, which has a prefetch of its own."""
        assert self._connection is not None
        self._channel = self._connection.connection.channel()
        self._channels[self._channel.channel_id] = self._channel
        # a body is bytes, whatever its encoding
        self._channel.auto_decode = False
        self._answer()
        for queue in self._queues:
            self._channel.basic_consume(queue, consumer_tag=f"mover.{queue}", callback=self._arrive_by_py_amqp)

    def _arrive_by_py_amqp(self, delivery: Any) -> None:  # noqa: ANN401 - amqp.Message
        self._arrive(of_py_amqp(delivery))

    def _arrive(self, delivery: Delivery) -> None:
        if delivery.channel not in self._channels:
            # the reader is closed meanwhile: this was on its way, and goes back with the others
            self._late += 1
            return
        if not self._refreshed(delivery) and self._is_wanted(delivery):
            self._arrived.append(delivery)

    def _is_wanted(self, delivery: Delivery) -> bool:  # noqa: ARG002 - for readers of some messages alone
        return True

    def _refreshed(self, delivery: Delivery) -> bool:
        """Replace a message that the queue would soon drop by a copy at its end; return whether that was done."""
        if self._limit is None or returns_in(delivery.message.headers) < self._limit - _RETURNS_LEFT:
            return False
        with suppress(Unroutable), self._connect() as own:
            copy = without_counts(delivery.message)
            move(own.default_channel, copy, self._queue, delivery.tag, self._channels[delivery.channel].basic_ack)
            return True
        return False

    def _receive(self, limit: int) -> None:
        if self._channel is None:
            # no such queue
            self.close()
            return
        assert self._connection is not None
        established, waited_s = self._connection.connection, 0.0
        while len(self._arrived) < limit:
            try:
                established.drain_events(timeout=_PAUSE_S)
            except TimeoutError:
                waited_s += _PAUSE_S
                if self._arrived:
                    return
                waiting = self._waiting(established)
                if not waiting:
                    # what has left the queue may still be on its way; it comes before this answer
                    self._answer()
                    return
                if waited_s >= _ARRIVE_WITHIN_S:
                    if self._held >= _MAX_PREFETCH:
                        return
                    message = f"{waiting} messages wait in {self._queue!r}, and RabbitMQ has handed out none for 1 s"
                    hint = "Is another consumer its single active consumer? It has to leave first."
                    raise BrokerUnreachable(message, hint=hint) from None

    def _waiting(self, established: Any) -> int:  # noqa: ANN401 - amqp.Connection
        return sum(count_waiting(established, one) or 0 for one in self._queues)


class FilteredReader(RabbitReader):
    """Reads some of the messages of one or more queues.

    The others are also held until the reader is closed; delayed ones arrive a little late if they are due meanwhile.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        queues: tuple[str, ...],
        wanted: Callable[[Delivery], bool],
        return_limit: int | None,
        errors: Errors,
    ) -> None:
        """Read the deliveries that `wanted` returns True for; `return_limit` is that of a single queue."""
        super().__init__(connect, queues[0], 0, return_limit, errors)
        self._queues, self._wanted = queues, wanted

    def acknowledge(self, channels: Mapping[int, Any], deliveries: Sequence[Delivery], *, in_order: bool) -> None:
        """Acknowledge one by one: between them are others."""
        del in_order
        super().acknowledge(channels, deliveries, in_order=False)

    def _is_wanted(self, delivery: Delivery) -> bool:
        is_wanted = self._wanted(delivery)
        self._held += not is_wanted
        return is_wanted

    def _receive(self, limit: int) -> None:
        super()._receive(limit)
        while self._connection is not None and not self._arrived and self._held >= _MAX_PREFETCH:
            self._held = 0
            self._consume()
            super()._receive(limit)


def is_for(queue: str, moved: MovedBy | None) -> Callable[[Delivery], bool]:
    """Return whether a delayed delivery will go to a queue, and a move brought it if `moved` says so."""
    brought = brought_by(moved)
    return lambda one: delayed_queue_of(one.routing_key) == queue and brought(one)


def brought_by(moved: MovedBy | None) -> Callable[[Delivery], bool]:
    """Return whether a move brought a delivery; any of them for None."""
    if moved is None:
        return lambda _: True
    return lambda one: moved.has(one.message.headers)


class _Window(Reservation):
    """Deliveries of a reader, in order."""

    def __init__(self, reader: RabbitReader, channels: Mapping[int, Any], deliveries: list[Delivery]) -> None:
        self._deliveries = {f"{one.channel}.{one.tag}": one for one in deliveries}
        super().__init__(reader.taken(name, one) for name, one in self._deliveries.items())
        self._reader, self._channels = reader, channels

    def _commit(self, ids: list[str]) -> None:
        whole = len(ids) == len(self._open) == len(self.messages)
        found = sorted((self._deliveries[one] for one in ids), key=lambda one: one.tag)
        try:
            if found:
                self._reader.acknowledge(self._channels, found, in_order=whole)
        except _FAILURES as error:
            self._has_ended = True
            self._reader.close()
            raise ReservationLost.of(len(ids)) from error

    def _give_back(self) -> None:
        if self._open:
            self._reader.close()


class RabbitHold(QueueHold):
    """An exclusive queue: it belongs to one connection, and is gone with it."""

    def __init__(
        self, connect: Callable[[], Connection], queue: str, holder: str, errors: Errors, holder_of: Find
    ) -> None:
        """Hold by a queue beside `queue`; `holder_of` returns who has an exclusive queue."""
        self._connect, self._holder, self._errors, self._holder_of = connect, holder, errors, holder_of
        self.name = lock_name(queue)
        self._connection: Connection | None = None
        self._channel: Any = None

    def acquire(self, is_gone: Callable[[str], bool], within_s: float) -> RabbitHold:
        """Declare the queue; wait until RabbitMQ has noticed that the connection of a mover that has ended is closed.

        Raises:
            AlreadyMoving: another mover holds it.
            BrokerUnreachable: RabbitMQ did not answer.
        """

        def attempt() -> bool:
            try:
                self.renew()
            except AlreadyMoving as error:
                # without a holder it has been given up meanwhile
                if error.holder and not is_gone(error.holder):
                    raise
                return False
            return True

        wait_until(attempt, within_s=within_s, what="RabbitMQ closes the connection of a mover that has ended")
        return self

    def renew(self) -> None:
        """Ask for an answer: RabbitMQ ends the connection after two silent heartbeats. Without one declare it again."""
        with self._errors():
            if self._connection is None:
                self._acquire()
                return
            try:
                self._channel.basic_qos(0, 1, False)
            except _FAILURES as error:
                self.release()
                message = "the connection that holds the queue was lost"
                raise OSError(message) from error

    def release(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            leave(connection, _ARRIVE_WITHIN_S)

    def _acquire(self) -> None:
        connection = self._connect()
        channel: Any = connection.connection.channel()
        try:
            channel.queue_declare(self.name, exclusive=True, arguments={"x-repot-holder": self._holder})
        except amqp.ResourceLocked as error:
            leave(connection, _ARRIVE_WITHIN_S)
            other = self._holder_of(self.name)
            if other == self._holder:
                message = "RabbitMQ has not noticed yet that the former connection of this mover is dead"
                raise OSError(message) from error
            raise AlreadyMoving.by(other) from error
        except BaseException:
            leave(connection, _ARRIVE_WITHIN_S)
            raise
        self._connection, self._channel = connection, channel


def lock_name(queue: str) -> str:
    """Return the name of the exclusive queue whose owner may move a queue's messages."""
    return f"{queue}.repot-mover"
