"""Frames of AMQP that are written and received many at a time, past py-amqp's own reader and writer.

py-amqp looks for a message of the broker before it publishes each of its own, encodes everything each time, writes it
with a `sendall` of its own, and receives each frame with three `recv`: the header, the payload and the end. For a
backlog of small messages that is most of the time. Its transport already keeps what was received and not read yet
(`_read_buffer`), so receiving more than it asked for is enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_BREAKS = "A move of a backlog is slower, or fails at its first message."

POINTS = (
    Point(
        "amqp.transport:TCPTransport._read",
        Failure.SILENT,
        _BREAKS,
        contains=("recv = self._quick_recv", "while len(rbuf) < n:", "rbuf[:n], rbuf[n:]"),
    ),
    Point(
        "amqp.connection:Connection.drain_events", Failure.SILENT, _BREAKS, contains=("self.blocking_read(timeout)",)
    ),
    Point(
        "amqp.connection:Connection.blocking_read",
        Failure.SILENT,
        _BREAKS,
        contains=("with self.transport.having_timeout(timeout):", "self.transport.read_frame()"),
    ),
    Point(
        "amqp.abstract_channel:AbstractChannel.wait",
        Failure.SILENT,
        _BREAKS,
        contains=("drain_events(timeout=timeout)",),
    ),
    # a message of which it has read a part is read by it to the end: the next frame is not a method
    Point("amqp.method_framing:frame_handler", Failure.SILENT, _BREAKS, contains=("expected_types[channel] = 3",)),
    Point("amqp.transport:_AbstractTransport.write", Failure.LOUD, _BREAKS, contains=("self._write(s)",)),
    # nothing of it is kept between two frames
    Point("amqp.method_framing:frame_writer", Failure.SILENT, _BREAKS, contains=("connection.bytes_sent += 1",)),
)

_RECEIVED_BYTES = 128 << 10


def read_first(connection: Any, read: Callable[[bytes], tuple[list[T], int, bool]], take: Callable[[T], None]) -> None:
    """Let `read` look at what a connection of py-amqp has received, before py-amqp does, and `take` what it finds.

    `read` returns what it has found, of how many bytes, and whether more of it may follow but has not come completely.
    The rest is py-amqp's. This goes on while py-amqp waits for an answer.
    """
    transport, drain = connection.transport, connection.drain_events

    def drain_events(timeout: float | None = None) -> None:
        while True:
            found, used, is_incomplete = read(transport._read_buffer)
            if found:
                transport._read_buffer = transport._read_buffer[used:]
                # its heartbeats ask whether anything was received
                connection.bytes_recv += len(found)
                for one in found:
                    take(one)
                return
            if not is_incomplete:
                drain(timeout)
                return
            with transport.having_timeout(timeout):
                received = transport._quick_recv(_RECEIVED_BYTES)
            if not received:
                transport.connected = False
                message = "Server unexpectedly closed connection"
                raise OSError(message)
            transport._read_buffer += received

    connection.drain_events = drain_events


def write_frames(connection: Any, frames: list[bytes]) -> None:
    """Write whole frames over a connection of py-amqp, from its own thread, and empty the list."""
    connection.transport.write(b"".join(frames))
    # its heartbeats ask whether anything was sent
    connection.bytes_sent += len(frames)
    frames.clear()
