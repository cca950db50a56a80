"""The client side of RESP: each command is an array of bulk strings; kombu's ACK is a transaction of four commands.

redis-py reads only from a socket. hiredis reads bytes, but returns values without their position;
and redis-py uses hiredis wherever it is installed, so the workers of an experiment would differ from
those of a deployment without it. So this module parses commands itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from repot.chaos.protocol.requests import ProtocolError, Request, Stream

_LINE_END = b"\r\n"
#: The maximum length of a line with a count or a length.
_LONGEST_LINE = 24


class RespRequestParser(Stream):
    """Request parser of Redis: each command is a request, except the four commands of an ACK, which are one.

    kombu acknowledges by MULTI, ZREM of the tag from the index, HDEL of the tag from `unacked` and
    EXEC (`QoS.ack` in `kombu/transport/redis.py`), which redis-py sends at once. A reject without
    requeue is the same. A restore differs: it also pushes the message. The parser buffers commands
    that may become an ACK, so a client that waits for the reply to MULTI would wait for ever.
    """

    def __init__(self, index: str, unacked: str) -> None:
        """Start at the first byte of a connection; `index` and `unacked` are the keys with their prefix."""
        super().__init__()
        self._index, self._unacked = index.encode(), unacked.encode()

    def _size(self, held: bytearray) -> int:
        first = found = _command(held, 0)
        so_far: list[tuple[bytes, ...]] = []
        while found and self._may_be_ack(so_far := [*so_far, found.parts]):
            if len(so_far) == len(self._ack(b"")):
                return found.end
            found = _command(held, found.end)
        return first.end if first and found else 0

    def _request(self, data: bytes) -> Request:
        first = _command(data, 0)
        if first is None or first.end == len(data):
            return Request(data)
        second = _command(data, first.end)
        return Request(data, ack_of=second.parts[-1].decode(errors="replace") if second else None)

    def _may_be_ack(self, commands: list[tuple[bytes, ...]]) -> bool:
        tag = commands[1][-1] if len(commands) > 1 and commands[1] else b""
        return commands == self._ack(tag)[: len(commands)]

    def _ack(self, tag: bytes) -> list[tuple[bytes, ...]]:
        return [(b"MULTI",), (b"ZREM", self._index, tag), (b"HDEL", self._unacked, tag), (b"EXEC",)]


@dataclass(frozen=True, slots=True)
class _Command:
    parts: tuple[bytes, ...]
    end: int


def _command(held: bytes | bytearray, at: int) -> _Command | None:
    """Return the command at this offset; None if it is not complete.

    Raises:
        ProtocolError: the bytes are not a command.
    """
    found = _number_line(held, at, b"*")
    if found is None:
        return None
    at, count = found
    parts = []
    for _ in range(count):
        found = _number_line(held, at, b"$")
        if found is None:
            return None
        at, length = found
        parts.append(slice(at, at + length))
        at += length + len(_LINE_END)
        if not _LINE_END.startswith(held[at - len(_LINE_END) : at]):
            raise ProtocolError
    return _Command(tuple(bytes(held[part]) for part in parts), at) if at <= len(held) else None


def _number_line(held: bytes | bytearray, at: int, sign: bytes) -> tuple[int, int] | None:
    """Return the number of the line at this offset and the offset of the next line; None if it is not complete.

    Raises:
        ProtocolError: the line does not start with `sign` or has no number.
    """
    line = held[at : at + _LONGEST_LINE]
    if not line:
        return None
    text, line_end, _ = line.partition(_LINE_END)
    if not text.startswith(sign) or (not line_end and len(line) == _LONGEST_LINE):
        raise ProtocolError
    if not line_end:
        return None
    if not text[1:].isdigit():
        raise ProtocolError
    return at + len(text) + len(_LINE_END), int(text[1:])
