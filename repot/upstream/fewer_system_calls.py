"""Connections of py-amqp that read and write many frames with one system call.

py-amqp writes each message with a `sendall` of its own and receives each frame with three `recv`: the header, the
payload and the end. For a backlog of small messages that is most of the time. Its transport already keeps what was
received and not read yet (`_read_buffer`), so receiving more than it asked for is enough.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BREAKS = "A move of a backlog is slower, or fails at its first message."

POINTS = (
    Point(
        "amqp.transport:TCPTransport._read",
        Failure.SILENT,
        _BREAKS,
        contains=("recv = self._quick_recv", "while len(rbuf) < n:", "rbuf[:n], rbuf[n:]"),
    ),
    Point("amqp.transport:_AbstractTransport.write", Failure.LOUD, _BREAKS, contains=("self._write(s)",)),
    Point("amqp.method_framing:frame_writer", Failure.LOUD, _BREAKS, contains=("write = transport.write",)),
)

#: More would be copied again and again: each frame that is read moves the rest.
_RECEIVED_BYTES = 16 << 10
_WRITTEN_BYTES = 64 << 10


def receive_more(connection: Any) -> None:
    """Let a connection of py-amqp receive up to 16 KiB at once."""
    transport = connection.transport
    receive = transport._quick_recv
    transport._quick_recv = lambda size: receive(max(size, _RECEIVED_BYTES))


@contextmanager
def writing_together(connection: Any) -> Iterator[Callable[[], None]]:
    """Keep what a connection writes, and send 64 KiB together; yield a function that sends the rest.

    What was not sent when the block ends is dropped: call the function first.
    """
    transport = connection.transport
    write = transport._write
    kept = bytearray()

    def send() -> None:
        found = bytes(kept)
        kept.clear()
        if found:
            write(found)

    def keep(data: bytes) -> None:
        # a view of a buffer that the next frame overwrites
        kept.extend(data)
        if len(kept) >= _WRITTEN_BYTES:
            send()

    transport._write = keep
    try:
        yield send
    finally:
        transport._write = write
