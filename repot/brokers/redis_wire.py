"""RESP as a client sends it: each command an array of bulk strings; kombu's ACK is a transaction of four commands.

redis-py reads only from a socket of its own. hiredis reads bytes, but gives values
without saying which bytes they were; and it is a guest with consequences: redis-py
takes it for its parser wherever it is installed, so the workers of an experiment
would not be the ones they are elsewhere. So commands are counted off here.
"""

from __future__ import annotations

from dataclasses import dataclass

from repot.brokers.wire import Foreign, Request, Stream

_LINE_END = b"\r\n"
#: A line that announces a number is no longer than this.
_LONGEST_LINE = 24


class RespRequests(Stream):
    """The `Requests` of Redis: every command by itself, but for the four of an ACK.

    kombu acknowledges by MULTI, ZREM of the tag from the index, HDEL of it from
    `unacked`, EXEC (`QoS.ack` in `kombu/transport/redis.py`), which redis-py sends at
    once. A reject without requeue is written the same. A restore is not: it pushes the
    message, too. What could still become an ACK is held back meanwhile, so a client
    that waits for the answer to MULTI before it goes on would wait in vain.
    """

    def __init__(self, index: str, unacked: str) -> None:
        """Begin with a connection's first byte; `index` and `unacked` are the keys on the server, prefix included."""
        super().__init__()
        self._index, self._unacked = index.encode(), unacked.encode()

    def _size(self, held: bytearray) -> int:
        first = found = _command(held, 0)
        so_far: list[tuple[bytes, ...]] = []
        while found and self._may_be_ack(so_far := [*so_far, found.words]):
            if len(so_far) == len(self._ack(b"")):
                return found.end
            found = _command(held, found.end)
        return first.end if first and found else 0

    def _request(self, data: bytes) -> Request:
        first = _command(data, 0)
        if first is None or first.end == len(data):
            return Request(data)
        second = _command(data, first.end)
        return Request(data, ack_of=second.words[-1].decode(errors="replace") if second else None)

    def _may_be_ack(self, commands: list[tuple[bytes, ...]]) -> bool:
        tag = commands[1][-1] if len(commands) > 1 and commands[1] else b""
        return commands == self._ack(tag)[: len(commands)]

    def _ack(self, tag: bytes) -> list[tuple[bytes, ...]]:
        return [(b"MULTI",), (b"ZREM", self._index, tag), (b"HDEL", self._unacked, tag), (b"EXEC",)]


@dataclass(frozen=True, slots=True)
class _Command:
    words: tuple[bytes, ...]
    end: int


def _command(held: bytes | bytearray, at: int) -> _Command | None:
    """The command that begins there; None if it is not whole.

    Raises:
        Foreign: it is none.
    """
    found = _announced(held, at, b"*")
    if found is None:
        return None
    at, count = found
    words = []
    for _ in range(count):
        found = _announced(held, at, b"$")
        if found is None:
            return None
        at, length = found
        words.append(slice(at, at + length))
        at += length + len(_LINE_END)
        if not _LINE_END.startswith(held[at - len(_LINE_END) : at]):
            raise Foreign
    return _Command(tuple(bytes(held[word]) for word in words), at) if at <= len(held) else None


def _announced(held: bytes | bytearray, at: int, sign: bytes) -> tuple[int, int] | None:
    """The number after a sign, on a line of its own, and where the next begins; None if it is not whole.

    Raises:
        Foreign: there is none.
    """
    line = held[at : at + _LONGEST_LINE]
    if not line:
        return None
    text, line_end, _ = line.partition(_LINE_END)
    if not text.startswith(sign) or (not line_end and len(line) == _LONGEST_LINE):
        raise Foreign
    if not line_end:
        return None
    if not text[1:].isdigit():
        raise Foreign
    return at + len(text) + len(_LINE_END), int(text[1:])
