"""Write a message as the frames of AMQP 0-9-1, byte for byte as py-amqp does, in a fraction of its time.

A backlog has few tasks, and most headers are the same in all messages of a task: what was encoded is kept for the next
one (`functools.lru_cache`). Values that are not texts, numbers, truth values or null are left to py-amqp.
"""

from __future__ import annotations

import math
import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import amqp
from amqp import serialization, spec

from repot.brokers.message import EncodedHeaders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from repot.brokers.message import Message

#: Longer texts are not kept: ids, instants and arguments differ in each message.
_KEPT_CHARACTERS = 31
_KEPT = 4096
_LARGEST_INT = 2**31 - 1
_LONGEST_MS = 2**32 - 1

_LENGTH = struct.Struct(">I")
#: Type, channel, and length of the payload; after it comes an end of one byte.
_FRAME, _END = struct.Struct(">BHI"), b"\xce"
_METHOD, _HEADER, _BODY = 1, 2, 3
#: Class, weight, length of the body, and flags of the properties.
_CONTENT = struct.Struct(">HHQH")

#: What encoding raises for a value that AMQP does not have.
_FAILURES = (struct.error, TypeError, AttributeError, OverflowError, RecursionError, amqp.FrameSyntaxError)


def _octet(value: int) -> bytes:
    return struct.pack("B", value)


def _long_long(value: int) -> bytes:
    return struct.pack(">Q", value)


def _short(value: str | bytes) -> bytes:
    """Return a text with its length in one byte."""
    found = value.encode(errors="surrogatepass") if isinstance(value, str) else value
    return _octet(len(found)) + found


def _milliseconds(value: str | bytes) -> bytes:
    """Return a time to live; RabbitMQ closes the channel for one that is not a number, or too large."""
    found = value.decode(errors="replace") if isinstance(value, bytes) else value
    if not (found.isascii() and found.isdigit() and int(found) <= _LONGEST_MS):
        message = "the expiration is not a number of milliseconds"
        raise amqp.FrameSyntaxError(message)
    return _short(value)


_kept_short = lru_cache(_KEPT, typed=True)(_short)
_kept_octet = lru_cache(_KEPT, typed=True)(_octet)

#: Properties in the order of their flags; headers come before them, and the type and the encoding of the content.
_PROPERTIES: tuple[tuple[str, int, Callable[[Any], bytes]], ...] = (
    ("delivery_mode", 1 << 12, _kept_octet),
    ("priority", 1 << 11, _kept_octet),
    ("correlation_id", 1 << 10, _short),
    ("reply_to", 1 << 9, _short),
    ("expiration", 1 << 8, _milliseconds),
    ("message_id", 1 << 7, _short),
    ("timestamp", 1 << 6, _long_long),
    ("type", 1 << 5, _short),
    ("user_id", 1 << 4, _short),
    ("app_id", 1 << 3, _short),
    ("cluster_id", 1 << 2, _short),
)
_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS = 1 << 15, 1 << 14, 1 << 13


class LongerThanAFrame(ValueError):
    """The headers and properties of a message do not fit into one frame."""


class FrameWriter:
    """Writes messages for one channel of a connection."""

    def __init__(self, channel: int, frame_max: int) -> None:
        """Write frames of at most `frame_max` bytes."""
        self._channel, self._largest = channel, frame_max - _FRAME.size - len(_END)
        self._methods: dict[tuple[str, str], bytes] = {}

    def publish(self, message: Message, exchange: str, key: str) -> bytes:
        """Return the frames of a mandatory basic.publish.

        Raises:
            LongerThanAFrame: its headers and properties are.
            ValueError: AMQP cannot express the message.
        """
        try:
            method = self._methods.get((exchange, key)) or self._method(exchange, key)
            flags, properties = _properties(message)
        except _FAILURES as error:
            why = (
                f"it cannot be written as AMQP: {error if isinstance(error, amqp.AMQPError) else type(error).__name__}"
            )
            raise ValueError(why) from error
        body = message.body
        header = _CONTENT.pack(spec.Basic.CLASS_ID, 0, len(body), flags) + properties
        if len(header) > self._largest:
            why = f"its headers and properties have {len(header)} bytes, and a frame has {self._largest}"
            raise LongerThanAFrame(why)
        parts = [method, self._frame(_HEADER, header)]
        parts += [self._frame(_BODY, body[at : at + self._largest]) for at in range(0, len(body), self._largest)]
        return b"".join(parts)

    def _method(self, exchange: str, key: str) -> bytes:
        # a reserved number first; of the bits `mandatory` alone is set
        payload = struct.pack(">HHH", *spec.Basic.Publish, 0) + _short(exchange) + _short(key) + b"\x01"
        found = self._methods[exchange, key] = self._frame(_METHOD, payload)
        return found

    def _frame(self, kind: int, payload: bytes) -> bytes:
        return _FRAME.pack(kind, self._channel, len(payload)) + payload + _END


def _properties(message: Message) -> tuple[int, bytes]:
    """Return the flags of a message's properties, and the properties; those that AMQP does not have are left out."""
    flags, parts = _HEADERS, []
    if message.content_type is not None:
        flags |= _CONTENT_TYPE
        parts.append(_kept_short(message.content_type))
    if message.content_encoding is not None:
        flags |= _CONTENT_ENCODING
        parts.append(_kept_short(message.content_encoding))
    parts.append(_headers(message.headers))
    stated = message.properties.get
    for name, flag, encoded in _PROPERTIES:
        value = stated(name)
        if value is not None:
            flags |= flag
            parts.append(encoded(value))
    return flags, b"".join(parts)


def _headers(headers: Mapping[str, Any]) -> bytes:
    if not isinstance(headers, EncodedHeaders):
        return _table(headers.items())
    return _table(((name, headers[name]) for name in headers.added), headers.encoded)


def _table(fields: Iterable[tuple[str, Any]], before: bytes = b"") -> bytes:
    """Return a table of fields, after others that are encoded."""
    parts = [before]
    add = parts.append
    for name, value in fields:
        kind = type(value)
        if kind is str and len(value) > _KEPT_CHARACTERS:
            add(_kept_short(name))
            add(_item(value))
        elif kind is str or value is None or kind is int or kind is bool:
            add(_kept_field(name, value))
        else:
            add(_kept_short(name))
            add(_item(value))
    encoded = b"".join(parts)
    return _LENGTH.pack(len(encoded)) + encoded


@lru_cache(_KEPT, typed=True)
def _kept_field(name: str, value: object) -> bytes:
    return _short(name) + _item(value)


def _item(value: object) -> bytes:
    """Return a value of a table, after its type."""
    encode = _ITEMS.get(type(value))
    if encode is not None:
        return encode(value)
    # an array with this item alone, without the array's length
    return serialization.dumps("A", ([value],))[_LENGTH.size :]


def _text(value: str) -> bytes:
    found = value.encode(errors="surrogatepass")
    return b"S" + _LENGTH.pack(len(found)) + found


def _integer(value: int) -> bytes:
    is_long = not -_LARGEST_INT <= value <= _LARGEST_INT
    return struct.pack(">cq", b"L", value) if is_long else struct.pack(">ci", b"I", value)


def _float(value: float) -> bytes:
    if not math.isfinite(value):
        # RabbitMQ ends the connection: Erlang has no such number
        message = "it contains a number that is not finite"
        raise amqp.FrameSyntaxError(message)
    return struct.pack(">cd", b"d", value)


def _array(values: list[Any]) -> bytes:
    items = b"".join(map(_item, values))
    return b"A" + _LENGTH.pack(len(items)) + items


_ITEMS: dict[type, Callable[[Any], bytes]] = {
    str: _text,
    type(None): lambda _: b"V",
    bool: lambda value: b"t\x01" if value else b"t\x00",
    int: _integer,
    float: _float,
    dict: lambda value: b"F" + _table(value.items()),
    list: _array,
}
