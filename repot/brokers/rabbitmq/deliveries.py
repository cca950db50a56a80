"""Read deliveries from the bytes that RabbitMQ sends, as py-amqp does, in a fraction of its time.

A delivery is a basic.deliver, a header, and a body of one frame, one directly after the other. Everything else that
comes is left to py-amqp: other methods, heartbeats, bodies of several frames.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from amqp import serialization, spec

from repot.brokers.message import Message, from_amqp
from repot.brokers.rabbitmq.tables import Layouts, after_short, kept_short, short

_HEADER, _BODY = 2, 3
#: Nothing, or the type of a method's frame.
_START = (b"", b"\x01")
#: Type, channel, and length of a frame; and a method of a class, or class and weight of a header, after it.
_FRAME = struct.Struct(">BHI")
_FRAME_AND_METHOD = struct.Struct(">BHIHH")
#: Length of the body, and flags of the properties.
_CONTENT = struct.Struct(">QH")
_CONTENT_AT = _FRAME_AND_METHOD.size
_END = 0xCE
_OVERHEAD = 8
#: A tag, and a bit that says whether the message was delivered before.
_TAG = struct.Struct(">QB")
_LENGTH, _LONG_LONG = struct.Struct(">I"), struct.Struct(">Q")
_KEPT = 4096

_LAYOUTS = Layouts()


@dataclass(slots=True)
class Delivery:
    """A message that was delivered, with RabbitMQ's counts of its deliveries; `channel` is a number."""

    channel: int
    tag: int
    is_redelivered: bool
    routing_key: str
    message: Message


def of_py_amqp(message: Any) -> Delivery:  # noqa: ANN401 - amqp.Message
    """Return a delivery that py-amqp has read."""
    info = message.delivery_info
    channel = message.channel.channel_id
    return Delivery(channel, message.delivery_tag, bool(info["redelivered"]), info["routing_key"], from_amqp(message))


def read_deliveries(data: bytes) -> tuple[list[Delivery], int, bool]:
    """Return the deliveries at the start of what was received, and how many bytes they are.

    The third value says whether a further delivery may follow, of which not all has come; if not, the next frame is
    not one of a delivery.
    """
    deliveries: list[Delivery] = []
    at = 0
    try:
        while (end := _end_of(data, at)) is not None:
            if end > len(data):
                return deliveries, at, True
            deliveries.append(_delivery(data, at))
            at = end
    except struct.error:
        # the bytes end within one of the frames' heads
        return deliveries, at, True
    return deliveries, at, False


def _end_of(data: bytes, at: int) -> int | None:
    """Return where a delivery ends, which may be further than what was received; None for anything else.

    Raises:
        struct.error: too little was received to tell.
    """
    if data[at : at + 1] not in _START:
        # a heartbeat is shorter than what is read next
        return None
    _, channel, length, class_id, method_id = _FRAME_AND_METHOD.unpack_from(data, at)
    if (class_id, method_id) != spec.Basic.Deliver:
        return None
    header = at + length + _OVERHEAD
    header_kind, header_channel, length, _, _ = _FRAME_AND_METHOD.unpack_from(data, header)
    size, _ = _CONTENT.unpack_from(data, header + _CONTENT_AT)
    end = header + length + _OVERHEAD
    if header_kind != _HEADER or header_channel != channel or data[header - 1] != _END:
        return None
    if size:
        kind, body_channel, length = _FRAME.unpack_from(data, end)
        if kind != _BODY or body_channel != channel or length != size or data[end - 1] != _END:
            return None
        end += length + _OVERHEAD
    return None if end <= len(data) and data[end - 1] != _END else end


def _delivery(data: bytes, at: int) -> Delivery:
    _, channel, length, _, _ = _FRAME_AND_METHOD.unpack_from(data, at)
    header = at + length + _OVERHEAD
    at = after_short(data, at + _FRAME_AND_METHOD.size)
    tag, bits = _TAG.unpack_from(data, at)
    key, _ = short(data, after_short(data, at + _TAG.size))
    _, _, length = _FRAME.unpack_from(data, header)
    size, flags = _CONTENT.unpack_from(data, header + _CONTENT_AT)
    properties = _properties(data, header + _CONTENT_AT + _CONTENT.size, flags)
    kind, encoding = properties.pop("content_type", None), properties.pop("content_encoding", None)
    headers = properties.pop("application_headers", None) or {}
    body = header + length + _OVERHEAD + _FRAME.size
    message = Message(data[body : body + size], kind, encoding, headers, properties)
    return Delivery(channel, tag, bool(bits & 1), key, message)


def _octet(data: bytes, at: int) -> tuple[int, int]:
    return data[at], at + 1


def _long_long(data: bytes, at: int) -> tuple[int, int]:
    return _LONG_LONG.unpack_from(data, at)[0], at + _LONG_LONG.size


def _headers(data: bytes, at: int) -> tuple[dict[Any, Any], int]:
    """Return headers; those with values of other types than Celery's, or texts that are not UTF-8, by py-amqp."""
    end = at + _LENGTH.size + _LENGTH.unpack_from(data, at)[0]
    fields = data[at + _LENGTH.size : end]
    try:
        headers = _LAYOUTS.read(fields)
    except (KeyError, UnicodeDecodeError):
        (found,), end = serialization.loads("F", data, at)
        return found, end
    headers.encoded, headers.added = fields, ()
    return headers, end


#: The properties in the order of their flags.
_DECODERS = tuple(
    (1 << 15 - place, name, decode)
    for place, (name, decode) in enumerate(
        (
            ("content_type", kept_short),
            ("content_encoding", kept_short),
            ("application_headers", _headers),
            ("delivery_mode", _octet),
            ("priority", _octet),
            ("correlation_id", short),
            ("reply_to", short),
            ("expiration", short),
            ("message_id", short),
            ("timestamp", _long_long),
            ("type", short),
            ("user_id", short),
            ("app_id", short),
            ("cluster_id", short),
        )
    )
)


@lru_cache(_KEPT)
def _stated(flags: int) -> tuple[tuple[str, Any], ...]:
    return tuple((name, decode) for flag, name, decode in _DECODERS if flags & flag)


def _properties(data: bytes, at: int, flags: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, decode in _stated(flags):
        found[name], at = decode(data, at)
    return found
