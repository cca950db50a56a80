"""Publisher confirms for many messages at once: a channel that publishes on, and counts what the broker has confirmed.

py-amqp waits for each confirm before it publishes the next message (`Channel.basic_publish_confirm`), one round trip
and one write to disk a message.

Reaches into py-amqp 5.4: `Channel.basic_publish` is replaced on the one channel, and its `events` are heard, which
kombu's producers and py-amqp's own `basic_publish_confirm` do as well.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import amqp
from kombu import Producer


class WindowProducer(Producer):  # type: ignore[misc,unused-ignore]
    """Publishes once: on a new connection nothing would be known of the messages before."""

    def publish(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - kombu's signature
        """Publish without a retry."""
        return super().publish(*arguments, **options | {"retry": False})


class ConfirmingChannel:
    """A channel of its own on one connection; belongs to one thread."""

    def __init__(self, connection: Any, size: int, timeout_s: float) -> None:  # noqa: ANN401 - kombu's Connection
        """Open it. At most `size` messages wait for their confirms; a broker that is silent for `timeout_s` is away."""
        self._connection = connection
        self._size = size
        self._timeout_s = timeout_s
        #: Delivery tags that are not confirmed, in their order, and whose message each is.
        self._pending: dict[int, str] = {}
        self._refused: dict[str, None] = {}
        self._last_tag = 0
        self._channel = connection.channel()
        self._channel.confirm_select()
        self._channel.events["basic_ack"].add(self._confirmed)
        self._channel.events["basic_nack"].add(self._nacked)
        self._channel.events["basic_return"].add(self._returned)
        # in the place of the one that waits
        self._channel.basic_publish = self._publish
        self.producer = WindowProducer(self._channel, auto_declare=False)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Correlation ids of messages that the broker has neither confirmed nor refused: it may have them."""
        return tuple(self._pending.values())

    @property
    def refused(self) -> tuple[str, ...]:
        """Those it has refused: no queue for them, or one that is full."""
        return tuple(self._refused)

    def wait(self, most: int = 0) -> None:
        """Wait until at most so many messages are not confirmed.

        Raises:
            TimeoutError: nothing came for the whole timeout.
            Exception: the connection's or the channel's errors.
        """
        while len(self._pending) > most:
            self._connection.drain_events(timeout=self._timeout_s)

    def close(self) -> None:
        """Give the channel back, and forget the numbers of the messages."""
        self._channel.close()

    def drop_connection(self) -> None:
        """Close the connection without a word to a broker that may not answer; the next one who uses it connects."""
        if self._channel.connection is not None:
            self._channel.connection.collect()
        self._connection.collect()

    def _publish(self, message: Any, **options: Any) -> None:  # noqa: ANN401 - py-amqp's
        if len(self._pending) >= self._size:
            # half a window goes on being confirmed while the next messages are published
            self.wait(self._size // 2)
        self._last_tag += 1
        self._pending[self._last_tag] = str(message.properties.get("correlation_id") or "")
        # without `mandatory` RabbitMQ confirms a message that it drops
        amqp.Channel.basic_publish(self._channel, message, **options | {"mandatory": True})

    def _confirmed(self, tag: int, multiple: bool) -> None:  # noqa: FBT001 - py-amqp's signature
        for one in self._meant(tag, multiple):
            self._pending.pop(one, None)

    def _nacked(self, tag: int, multiple: bool) -> None:  # noqa: FBT001
        for one in self._meant(tag, multiple):
            if one in self._pending:
                self._refused[self._pending.pop(one)] = None

    def _returned(self, _error: BaseException, _exchange: str, _key: str, message: Any) -> None:  # noqa: ANN401
        # its confirm comes next
        self._refused[str(message.properties.get("correlation_id") or "")] = None

    def _meant(self, tag: int, multiple: bool) -> list[int]:  # noqa: FBT001
        """The tags that a confirm speaks of; RabbitMQ confirms many at once, and 0 means all."""
        if not multiple:
            return [tag]
        return list(takewhile(lambda one: one <= tag or not tag, self._pending))


def can_confirm(connection: Any) -> bool:  # noqa: ANN401 - kombu's Connection
    """Whether a broker confirms messages: Redis answers each command anyway, and has no such thing."""
    return isinstance(connection.default_channel, amqp.Channel)
