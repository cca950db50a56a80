"""A channel of py-amqp whose publisher confirms arrive as events.

py-amqp has no asynchronous confirms: with `confirm_publish` it replaces `basic_publish` by a method that waits for each
confirm, one round trip and one write to disk a message (`Channel.basic_publish_confirm`). A producer of kombu's calls
the channel's `basic_publish`, so it is replaced here in the same way, on one channel.

py-amqp also sends each message by a `sendall` of its own, with TCP_NODELAY: RabbitMQ reads, routes and writes them one
by one. Linux gathers what is sent into full segments while TCP_CORK is set, for at most 200 ms (tcp(7)).
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Protocol

import amqp

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Callable

_BREAKS = "In a confirm window, messages count as confirmed or lost that are not."

POINTS = (
    Point(
        "amqp.channel:Channel.__init__",
        Failure.SILENT,
        _BREAKS,
        contains=("self.events = defaultdict(set)", "self.basic_publish = self.basic_publish_confirm"),
    ),
    Point(
        "amqp.channel:Channel._on_close",
        Failure.SILENT,
        "A message that is too large counts as unknown on a slow RabbitMQ.",
        contains=("self._do_revive()", "raise error_for_code("),
    ),
    Point("amqp.channel:Channel._on_basic_ack", Failure.SILENT, _BREAKS, contains=("self.events['basic_ack']",)),
    Point("amqp.channel:Channel._on_basic_nack", Failure.SILENT, _BREAKS, contains=("self.events['basic_nack']",)),
    Point(
        "amqp.channel:Channel._on_basic_return", Failure.SILENT, _BREAKS, contains=("self.events.get('basic_return')",)
    ),
    Point(
        "kombu.messaging:Producer._publish",
        Failure.SILENT,
        "In a confirm window, each message waits for its own confirm.",
        contains=("channel.basic_publish(",),
    ),
    Point(
        "amqp.transport:_AbstractTransport._init_socket",
        Failure.SILENT,
        "In a confirm window, RabbitMQ reads each message by itself, at three times the cost.",
        contains=("self.sock.settimeout(",),
    ),
    Point(
        "amqp.abstract_channel:AbstractChannel.wait",
        Failure.SILENT,
        "In a confirm window, what declares a queue waits for 200 ms.",
        "(self, method, callback=None, timeout=None, returns_tuple=False)",
    ),
)

#: Only Linux has it.
_CORK: int | None = getattr(socket, "TCP_CORK", None)


class ConfirmListener(Protocol):
    """What happens to messages that were published on a confirming channel."""

    def confirmed(self, tag: int, multiple: bool) -> None:  # noqa: FBT001 - py-amqp's signature
        """Take the broker's confirm."""

    def nacked(self, tag: int, multiple: bool) -> None:  # noqa: FBT001
        """Take the broker's refusal."""

    def returned(self, error: BaseException, exchange: str, key: str, message: Any) -> None:
        """Take a message that no queue took; its confirm follows."""


def open_confirming_channel(connection: Any, publish: Callable[..., None], listener: ConfirmListener) -> Any:
    """Open a channel of `connection`, kombu's; its producers publish by `publish` and do not wait for confirms."""
    channel = connection.channel()
    channel.confirm_select()
    channel.events["basic_ack"].add(listener.confirmed)
    channel.events["basic_nack"].add(listener.nacked)
    channel.events["basic_return"].add(listener.returned)
    channel.basic_publish = publish
    return channel


def report_close_at_once(channel: Any) -> None:
    """Let a channel that RabbitMQ closes raise the reason, and stay closed.

    py-amqp opens the channel again first. If that takes longer than the timeout of the read, the reason is lost.
    """
    channel._do_revive = lambda: None


def publish_unconfirmed(channel: amqp.Channel, message: Any, **options: Any) -> None:
    """Publish a message without waiting for its confirm; options of `amqp.Channel.basic_publish`."""
    amqp.Channel.basic_publish(channel, message, **options)


def gather(channel: Any, *, more: bool) -> None:
    """Let the kernel gather what the connection of a channel sends, for at most 200 ms; `more=False` sends it.

    Does nothing where the kernel cannot, or the connection is closed.
    """
    sock = channel.connection and channel.connection.transport.sock
    if sock and _CORK is not None:
        sock.setsockopt(socket.IPPROTO_TCP, _CORK, more)


def before_answers(channel: Any, do: Callable[[], None]) -> None:
    """Call `do` before a channel waits for an answer."""
    wait = channel.wait

    def wait_for(*arguments: Any, **options: Any) -> Any:
        do()
        return wait(*arguments, **options)

    channel.wait = wait_for


def is_confirming(connection: Any) -> bool:
    """Return whether a kombu connection is one of py-amqp's, whose broker confirms messages."""
    return isinstance(connection.default_channel, amqp.Channel)
