"""AMQP 0-9-1 as a client sends it: a header of eight bytes, then frames; an ACK is one frame, `basic.ack`.

py-amqp says how a method is numbered and how its arguments are written, but reads
frames only from a socket of its own. pamqp reads them from bytes; it decodes each
whole, tables of headers included, and raises the same for a frame that has not come
whole yet as for one that is none. So the seven bytes before a frame are read here.
"""

from __future__ import annotations

from struct import Struct

from amqp import spec
from amqp.serialization import loads

from repot.brokers.wire import Foreign, Request, Stream

_PROTOCOL = b"AMQP"
_PROTOCOL_HEADER_BYTES = 8

#: A frame: type, channel, size of the payload; the payload; an end mark.
_FRAME_HEADER = Struct(">BHI")
_FRAME_END = 0xCE
_METHOD = 1
#: Method, header, body, heartbeat; py-amqp 5 and RabbitMQ write 8 for the last, older clients 4.
_FRAME_TYPES = frozenset({_METHOD, 2, 3, 4, 8})
#: RabbitMQ takes no larger message, and so no larger frame.
_LARGEST_PAYLOAD = 2**29

#: A method's payload: class, method, and of `basic.ack` the tag and whether it is for those before, too.
_METHOD_ID = Struct(">HH")
_ACK_BYTES = _METHOD_ID.size + 8 + 1


class AmqpRequests(Stream):
    """The `Requests` of AMQP: the protocol header, then every frame.

    A delivery tag is its number as text. It counts within one channel.
    """

    def __init__(self) -> None:
        """Begin with a connection's first byte."""
        super().__init__()
        self._greeted = False

    def _size(self, held: bytearray) -> int:
        size = _frame_size(held) if self._greeted else _header_size(held)
        if size > len(held):
            return 0
        if self._greeted and size and held[size - 1] != _FRAME_END:
            raise Foreign
        return size

    def _request(self, data: bytes) -> Request:
        if not self._greeted:
            self._greeted = True
            return Request(data)
        return _frame(data)


def _header_size(held: bytearray) -> int:
    if not _PROTOCOL.startswith(bytes(held[: len(_PROTOCOL)])):
        raise Foreign
    return _PROTOCOL_HEADER_BYTES


def _frame_size(held: bytearray) -> int:
    if held[0] not in _FRAME_TYPES:
        raise Foreign
    if len(held) < _FRAME_HEADER.size:
        return 0
    _, _, payload = _FRAME_HEADER.unpack_from(held)
    if payload > _LARGEST_PAYLOAD:
        raise Foreign
    return _FRAME_HEADER.size + int(payload) + 1


def _frame(data: bytes) -> Request:
    payload = data[_FRAME_HEADER.size : -1]
    if data[0] != _METHOD or len(payload) != _ACK_BYTES or _METHOD_ID.unpack_from(payload) != spec.Basic.Ack:
        return Request(data)
    (tag, multiple), _ = loads("Lb", payload, _METHOD_ID.size)
    return Request(data, ack_of=str(tag), and_before=bool(multiple))
