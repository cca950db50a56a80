"""Frames of AMQP that are written and received many at a time, past py-amqp's own reader and writer.

py-amqp looks for a message of the broker before it publishes each of its own, encodes everything each time, writes it
with a `sendall` of its own, and receives each frame with three `recv`: the header, the payload and the end. For a
backlog of small messages that is most of the time. Its transport already keeps what was received and not read yet
(`_read_buffer`), so receiving more than it asked for is enough.
"""

from __future__ import annotations

from typing import Any

from repot.upstream.point import Failure, Point

_BREAKS = "A move of a backlog is slower, or fails at its first message."

POINTS = (
    Point(
        "amqp.transport:TCPTransport._read",
        Failure.SILENT,
        _BREAKS,
        contains=("recv = self._quick_recv", "while len(rbuf) < n:", "rbuf[:n], rbuf[n:]"),
    ),
    Point("amqp.transport:_AbstractTransport.write", Failure.LOUD, _BREAKS, contains=("self._write(s)",)),
    # nothing of it is kept between two frames
    Point("amqp.method_framing:frame_writer", Failure.SILENT, _BREAKS, contains=("connection.bytes_sent += 1",)),
)

#: More would be copied again and again: each frame that is read moves the rest.
_RECEIVED_BYTES = 16 << 10


def receive_more(connection: Any) -> None:
    """Let a connection of py-amqp receive up to 16 KiB at once."""
    transport = connection.transport
    receive = transport._quick_recv
    transport._quick_recv = lambda size: receive(max(size, _RECEIVED_BYTES))


def write_frames(connection: Any, frames: list[bytes]) -> None:
    """Write whole frames over a connection of py-amqp, from its own thread, and empty the list."""
    connection.transport.write(b"".join(frames))
    # its heartbeats ask whether anything was sent
    connection.bytes_sent += len(frames)
    frames.clear()
