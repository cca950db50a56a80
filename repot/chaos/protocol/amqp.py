"""The client side of AMQP 0-9-1: a header of eight bytes, then frames; an ACK is one frame, `basic.ack`.

py-amqp defines the numbers of methods and the encoding of their arguments, but reads frames only
from a socket. pamqp reads frames from bytes, but decodes each frame completely, and raises the same
error for an incomplete frame as for an invalid one. So this module reads the frame header itself.
"""

from __future__ import annotations

from struct import Struct

from amqp import spec
from amqp.serialization import loads

from repot.chaos.protocol.requests import ProtocolError, Request, Stream

_PROTOCOL = b"AMQP"
_PROTOCOL_HEADER_BYTES = 8

#: A frame: type, channel, size of the payload; the payload; an end mark.
_FRAME_HEADER = Struct(">BHI")
_FRAME_END = 0xCE
_METHOD = 1
#: Method, header, body, heartbeat; py-amqp 5 and RabbitMQ write 8 for the last, older clients 4.
_FRAME_TYPES = frozenset({_METHOD, 2, 3, 4, 8})
#: RabbitMQ accepts no larger message, and so no larger frame.
_LARGEST_PAYLOAD = 2**29

#: A method's payload: class and method; then, for `basic.ack`, the delivery tag and the flag `multiple`.
_METHOD_ID = Struct(">HH")
_ACK_BYTES = _METHOD_ID.size + 8 + 1


class AmqpRequestParser(Stream):
    """Request parser of AMQP: the protocol header, then every frame.

    A delivery tag is a number as text, unique within one channel.
    """

    def __init__(self) -> None:
        """Start at the first byte of a connection."""
        super().__init__()
        self._has_header = False

    def _size(self, held: bytearray) -> int:
        size = _frame_size(held) if self._has_header else _header_size(held)
        if size > len(held):
            return 0
        if self._has_header and size and held[size - 1] != _FRAME_END:
            raise ProtocolError
        return size

    def _request(self, data: bytes) -> Request:
        if not self._has_header:
            self._has_header = True
            return Request(data)
        return _frame(data)


def _header_size(held: bytearray) -> int:
    if not _PROTOCOL.startswith(bytes(held[: len(_PROTOCOL)])):
        raise ProtocolError
    return _PROTOCOL_HEADER_BYTES


def _frame_size(held: bytearray) -> int:
    if held[0] not in _FRAME_TYPES:
        raise ProtocolError
    if len(held) < _FRAME_HEADER.size:
        return 0
    _, _, payload = _FRAME_HEADER.unpack_from(held)
    if payload > _LARGEST_PAYLOAD:
        raise ProtocolError
    return _FRAME_HEADER.size + int(payload) + 1


def _frame(data: bytes) -> Request:
    payload = data[_FRAME_HEADER.size : -1]
    if data[0] != _METHOD or len(payload) != _ACK_BYTES or _METHOD_ID.unpack_from(payload) != spec.Basic.Ack:
        return Request(data)
    (tag, multiple), _ = loads("Lb", payload, _METHOD_ID.size)
    return Request(data, ack_of=str(tag), multiple=bool(multiple))
