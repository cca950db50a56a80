"""Publisher confirms for many messages at once: a channel that does not wait for each, and counts the confirmed ones.

py-amqp waits for each confirm before it publishes the next message (`Channel.basic_publish_confirm`), one round trip
and one write to disk a message.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from kombu import Producer

from repot.upstream.confirming_channel import before_answers, gather, open_confirming_channel, publish_unconfirmed

#: The attribute of a pooled connection, which one thread has at a time, for the channel of its last window.
_KEPT = "repot_window"


class WindowProducer(Producer):  # type: ignore[misc,unused-ignore]
    """Publishes once: a retry on a new connection would lose track of the messages before."""

    def publish(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - kombu's signature
        """Publish without a retry."""
        return super().publish(*arguments, **options | {"retry": False})


class ConfirmingChannel:
    """A channel of one connection, for one thread.

    Attributes:
        size: of its window: how many messages may wait for confirms.
        timeout_s: a broker is unreachable after so much silence.
    """

    size: int
    timeout_s: float

    @classmethod
    def on(cls, connection: Any, size: int, timeout_s: float) -> ConfirmingChannel:  # noqa: ANN401 - kombu's Connection
        """Return the channel of the last window over a pooled connection, or a new one.

        To open a channel, select confirms and close it takes three round trips, as long as ten messages.
        """
        found: ConfirmingChannel | None = vars(connection).get(_KEPT)
        if found is None or not found.can_carry_another():
            found = cls(connection)
            setattr(connection, _KEPT, found)
        found.size, found.timeout_s = size, timeout_s
        return found

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 - kombu's Connection
        """Open it."""
        self._connection = connection
        #: Delivery tags that are not confirmed, in order, and the correlation id of each message.
        self._pending: dict[int, str] = {}
        self._refused: dict[str, None] = {}
        self._last_tag = 0
        #: Whether the kernel gathers messages: one after another they cost RabbitMQ three times as much.
        self._is_gathering = False
        self._channel = open_confirming_channel(connection, self._publish, self)
        before_answers(self._channel, self._send_gathered)
        self.producer = WindowProducer(self._channel, auto_declare=False)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Return the correlation ids of messages neither confirmed nor refused: the broker may have them."""
        return tuple(self._pending.values())

    @property
    def refused(self) -> tuple[str, ...]:
        """Return the correlation ids of refused messages: their queue is missing or full."""
        return tuple(self._refused)

    def wait(self, most: int = 0) -> None:
        """Wait until at most `most` messages are unconfirmed.

        Raises:
            TimeoutError: nothing came for the whole timeout.
            Exception: the connection's or the channel's errors.
        """
        self._send_gathered()
        while len(self._pending) > most:
            self._connection.drain_events(timeout=self.timeout_s)

    def can_carry_another(self) -> bool:
        """Return whether it is open, and its last window is settled."""
        is_open = self._channel.is_open and self._channel.connection is self._connection.connection
        return bool(is_open and not self._pending and not self._refused)

    def drop_connection(self) -> None:
        """Close the socket without waiting for the broker; the next user of the connection connects again."""
        if self._channel.connection is not None:
            self._channel.connection.collect()
        self._connection.collect()

    def _publish(self, message: Any, **options: Any) -> None:  # noqa: ANN401 - py-amqp's
        if len(self._pending) >= self.size:
            # half a window goes on being confirmed while the next messages are published
            self.wait(self.size // 2)
        self._last_tag += 1
        self._pending[self._last_tag] = str(message.properties.get("correlation_id") or "")
        # without `mandatory` RabbitMQ confirms a message that it drops
        publish_unconfirmed(self._channel, message, **options | {"mandatory": True})
        if not self._is_gathering:
            # the first one has left
            gather(self._channel, more=True)
            self._is_gathering = True

    def _send_gathered(self) -> None:
        if self._is_gathering:
            self._is_gathering = False
            gather(self._channel, more=False)

    def confirmed(self, tag: int, multiple: bool) -> None:  # noqa: FBT001 - py-amqp's signature
        """Take the broker's confirm."""
        for one in self._meant(tag, multiple):
            self._pending.pop(one, None)

    def nacked(self, tag: int, multiple: bool) -> None:  # noqa: FBT001
        """Take the broker's refusal."""
        for one in self._meant(tag, multiple):
            if one in self._pending:
                self._refused[self._pending.pop(one)] = None

    def returned(self, error: BaseException, exchange: str, key: str, message: Any) -> None:  # noqa: ANN401, ARG002
        """Take a message that no queue took; its confirm follows."""
        self._refused[str(message.properties.get("correlation_id") or "")] = None

    def _meant(self, tag: int, multiple: bool) -> list[int]:  # noqa: FBT001
        """Return the tags that a confirm is about; RabbitMQ confirms many at once, and 0 means all."""
        if not multiple:
            return [tag]
        return list(takewhile(lambda one: one <= tag or not tag, self._pending))
