"""Read a queue of RabbitMQ that workers consume as well, by way of a queue that no worker reads.

RabbitMQ gives what a dead consumer held to any other one. A mover that died after the target had confirmed a window,
and before RabbitMQ had read the acknowledgements, would leave that window on the target and to the source's workers. So
while a queue has other consumers its messages are *staged* first: copied to `{queue}.repot-staging`, and, once that is
confirmed, acknowledged, and RabbitMQ's answer awaited. They are moved from there, as from any queue. What a dead mover
leaves comes back to the staging queue, and so to the next mover alone.

A mover that dies between the copy and the acknowledgement leaves two copies, one of them to the workers. Each copy
says which reader staged it: one of another reader may have run (`TakenMessage.may_run`), and is sent with the mark.

Without other consumers messages are taken from the queue itself, after what is staged.
"""

from __future__ import annotations

import math
from time import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from repot.brokers.headers import MAYBE_TWICE_HEADER, instant
from repot.brokers.message import Message
from repot.brokers.moving import Outgoing, QueueReader, Release
from repot.brokers.publishing import PublishOutcome
from repot.brokers.rabbitmq.publish import Publisher, publisher_on
from repot.brokers.rabbitmq.reader import RabbitReader
from repot.brokers.rabbitmq.requeue import consumer_count, count_waiting, is_declared
from repot.brokers.reservation import TakenMessage
from repot.config.queues import DeadLetterQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import amqp

    from repot.brokers.rabbitmq.deliveries import Delivery
    from repot.brokers.rabbitmq.reader import Errors
    from repot.brokers.reservation import Reservation

#: What a staged message says of itself: who staged it, and what the staging queue must not obey.
_HEADER = "repot_staged"
#: RabbitMQ would let it expire in the staging queue, and compares `user_id` with the user of the connection.
_KEPT_PROPERTIES = ("expiration", "user_id")
#: RabbitMQ has obeyed them, and would do so again.
_COPIES = ("CC", "BCC")


def staging_name(queue: str) -> str:
    """Return the name of the queue in which a mover stages the messages of a queue."""
    return f"{queue}.repot-staging"


class StagedReader(RabbitReader):
    """Reads a staging queue; `staged_by` is the reader whose copies are known to be the only ones."""

    staged_by = ""

    def taken(self, name: str, delivery: Delivery) -> TakenMessage:
        """Return a staged message as it was before."""
        found = super().taken(name, delivery)
        message = found.message
        headers = dict(message.headers)
        stated = headers.pop(_HEADER, None) or {}
        properties = {**message.properties, **(stated.get("properties") or {})}
        original = Message(message.body, message.content_type, message.content_encoding, headers, properties)
        is_redelivered = found.is_redelivered or bool(stated.get("redelivered"))
        return TakenMessage(name, original, is_redelivered, may_run=stated.get("by") != self.staged_by)


class StagingReader(QueueReader):
    """Reads a queue, by way of its staging queue while it has other consumers."""

    def __init__(
        self,
        queue: str,
        reader: RabbitReader,
        staged: StagedReader,
        timeout_s: float,
        errors: Errors,
        *,
        delays: bool,
        check: Callable[[], None],
        stages: bool = True,
    ) -> None:
        """Read `queue`, or what is delayed for it, by `reader`, and its staging queue by `staged`.

        `delays` says whether RabbitMQ holds messages for the queue until they are due; `check` raises MoveRefused where
        the staging queue would not keep its messages. Without `stages` it only takes what is staged already.
        """
        self._queue, self._reader, self._staged = queue, reader, staged
        self._timeout_s, self._errors = timeout_s, errors
        self._name, self._delays, self._check = staging_name(queue), delays, check
        self._stages = stages
        #: Whether there is a staging queue; None before it was looked for.
        self._is_staging: bool | None = None
        self._is_first = True
        self._publisher: Publisher | None = None
        #: Messages that were staged and not taken since.
        self._rest = 0
        staged.staged_by = self._id = uuid4().hex

    def take(self, limit: int, name: str) -> Reservation:
        """Take what is staged; else stage a window, or take it from the queue if that has no other consumer."""
        connection = self._look()
        if self._is_staging and (self._rest or not self._staged.is_open):
            found = self._take_staged(limit, name)
            if found.messages:
                return found
        with self._errors():
            has_others = self._stages and self._has_others(connection)
        if not has_others:
            return self._reader.take(limit, name)
        window = self._reader.take(limit, name)
        if not window.messages:
            return window
        self._stage(window)
        self._rest = len(window.messages)
        return self._take_staged(limit, name)

    def _look(self) -> amqp.Connection:
        """Return the connection of the reader, and know whether there is a staging queue."""
        connection = self._reader.open()
        if self._is_staging is None:
            with self._errors():
                self._is_staging = is_declared(connection, self._name)
        return connection

    def _take_staged(self, limit: int, name: str) -> Reservation:
        found = self._staged.take(min(limit, self._rest or limit), name)
        self._rest = max(0, self._rest - len(found.messages)) if found.messages else 0
        return found

    def keep_alive(self) -> None:
        """Ask for answers on both connections."""
        self._reader.keep_alive()
        self._staged.keep_alive()

    def close(self) -> None:
        """Give back everything: what is staged to the staging queue."""
        self._staged.close()
        self._reader.close()

    def unstage(self, decide: Callable[[TakenMessage], Release]) -> None:
        """Publish what is staged to the queue, then acknowledge it; remove the staging queue."""
        self._look()
        while self._is_staging and (window := self._staged.take(self._staged.window, "")).messages:
            releases = {one.id: decide(one) for one in window.messages}
            kept = [one for one in window.messages if releases[one.id] is not Release.GONE]
            back = [self._back(one.message, releases[one.id]) for one in kept]
            self._publish(self._staged.open(), back)
            window.commit(releases)
        if self._is_staging:
            self._remove()

    def _has_others(self, connection: amqp.Connection) -> bool:
        own = self._reader.consumers_of(self._queue)
        found = self._reader.count_consumers(self._queue)
        if found == 0 and own == 0:
            # a leader that is silent has no consumers either: only a queue that answers has really none
            count_waiting(connection, self._queue)
            found = self._reader.count_consumers(self._queue)
        # fewer than its own: a silent leader
        return found is not None and found != own

    def _stage(self, window: Reservation) -> None:
        connection = self._reader.open()
        with self._errors():
            if not self._is_staging:
                # like dead letters: without a limit of returns
                DeadLetterQueue(self._name, "quorum").queue_declare(channel=connection.channel())
                self._is_staging = True
        if self._is_first:
            self._check()
            # RabbitMQ blocks a connection with its first message: learn that from one that leads nowhere
            self._publish(connection, [Outgoing(f"{self._name}.{self._id}", Message(b""))], is_probe=True)
            self._is_first = False
        self._publish(connection, [self._copy(one) for one in window.messages])
        self._acknowledge(window)

    def _acknowledge(self, window: Reservation) -> None:
        window.commit(one.id for one in window.messages)
        # the answer says that RabbitMQ has read it
        self._reader.keep_alive()

    def _publish(self, connection: amqp.Connection, outgoing: Sequence[Outgoing], *, is_probe: bool = False) -> None:
        """Publish over the connection that holds the messages: it is dead when another mover may hold them."""
        if not outgoing:
            return
        waited_s = 0.0

        def wait() -> None:
            nonlocal waited_s
            waited_s += 1
            if waited_s > self._timeout_s:
                message = "RabbitMQ takes no messages: is there an alarm?"
                raise TimeoutError(message)

        with self._errors():
            self._publisher = publisher_on(connection, self._publisher)
            receipts = self._publisher.publish(outgoing, self._timeout_s, wait)
            failed = [one for one in receipts if not one.is_confirmed]
            if is_probe:
                failed = [one for one in failed if one.outcome is PublishOutcome.UNKNOWN]
            if failed:
                # closed as well: a confirm may still come
                self.close()
                message = f"{failed[0].reason} ({self._name})"
                raise OSError(message)

    def _copy(self, taken: TakenMessage) -> Outgoing:
        message = taken.message
        kept = {name: value for name, value in message.properties.items() if name in _KEPT_PROPERTIES}
        properties = {name: value for name, value in message.properties.items() if name not in kept}
        stated = {"by": self._id, "redelivered": taken.is_redelivered, "properties": kept}
        headers = {**_without_copies(message), _HEADER: stated}
        properties["delivery_mode"] = 2
        return Outgoing(
            self._name, Message(message.body, message.content_type, message.content_encoding, headers, properties)
        )

    def _back(self, message: Message, release: Release) -> Outgoing:
        headers = {**_without_copies(message), **({MAYBE_TWICE_HEADER: True} if release is Release.MARKED else {})}
        properties = {name: value for name, value in message.properties.items() if name != "user_id"}
        due_at = instant(headers.get("eta")) if self._delays else None
        delay_s = 0 if due_at is None else max(0, math.ceil(due_at - time()))
        original = Message(message.body, message.content_type, message.content_encoding, headers, properties)
        return Outgoing(self._queue, original, delay_s)

    def _remove(self) -> None:
        """Delete the staging queue, if it is empty and no other mover that is about to end holds some of it."""
        self._staged.close()
        connection = self._reader.open()
        with self._errors():
            # in this order: a leader that is silent has no consumers either
            if count_waiting(connection, self._name) == 0 and consumer_count(connection, self._name) == 0:
                channel: Any = connection.channel()
                channel.queue_delete(self._name)
                channel.close()
                self._is_staging = False


def _without_copies(message: Message) -> dict[str, Any]:
    return {name: value for name, value in message.headers.items() if name not in _COPIES}
