"""Messages as frames: the bytes are those of py-amqp."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from amqp import spec
from amqp.method_framing import frame_writer
from amqp.serialization import dumps
from hypothesis import given
from hypothesis import strategies as st

from repot.brokers.message import Message, to_amqp
from repot.brokers.rabbitmq.frames import FrameWriter
from support.messages import messages

if TYPE_CHECKING:
    from collections.abc import Mapping

_FRAME_MAX = 4096
#: Those of which one is equal to another one, such as 1, 1.0 and True, and those that only AMQP has.
_VALUES = st.sampled_from((0, 0.0, -0.0, False, 1, 1.0, True, "", "1", b"1", 2**31 - 1, 2**31, -(2**31), -(2**63))) | (
    st.text(max_size=40)
    | st.binary(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(0, 2**32).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
    | st.integers(0, 2**31 - 1).map(Decimal)
    | st.lists(st.sampled_from((1, True, "x", None, {"a": 1.0})), max_size=3)
)


def _by_py_amqp(message: Message, exchange: str, key: str) -> bytes:
    written: list[bytes] = []
    transport = SimpleNamespace(write=lambda data: written.append(bytes(data)))
    write = frame_writer(SimpleNamespace(frame_max=_FRAME_MAX, bytes_sent=0), transport)
    write(1, 3, spec.Basic.Publish, dumps("Bssbb", (0, exchange, key, True, False)), to_amqp(message))
    return b"".join(written)


@given(message=messages(), key=st.text(max_size=20), size=st.sampled_from((None, 0, 4087, 4088, 4089, 9000)))
def test_a_message_is_written_as_py_amqp_does(message: Message, key: str, size: int | None) -> None:
    sent = message if size is None else replace(message, body=b"x" * size)
    writer = FrameWriter(3, _FRAME_MAX)
    # the second one is written with what the first one left
    assert [_by_py_amqp(sent, "e", key)] * 2 == [writer.publish(sent, "e", key) for _ in range(2)]


@given(headers=st.dictionaries(st.text(max_size=10), _VALUES, max_size=8))
def test_headers_are_written_as_py_amqp_does(headers: Mapping[str, Any]) -> None:
    message = Message(b"", headers=headers)
    assert _by_py_amqp(message, "", "q") == FrameWriter(3, _FRAME_MAX).publish(message, "", "q")


@pytest.mark.parametrize(
    "message",
    [
        Message(b"", headers={"x" * 256: 1}),
        Message(b"", headers={"x": 2**63}),
        Message(b"", headers={"x": object()}),
        Message(b"", headers={"x": "x" * _FRAME_MAX}),
        Message(b"", content_type="x" * 256),
        Message(b"", properties={"priority": 256}),
        Message(b"", properties={"timestamp": "today"}),
        Message(b"", properties={"correlation_id": 7}),
        # RabbitMQ ends the connection, or the channel
        Message(b"", headers={"x": [{"y": float("nan")}]}),
        Message(b"", headers={"x": float("inf")}),
        Message(b"", properties={"expiration": ""}),
        Message(b"", properties={"expiration": "-1"}),
        Message(b"", properties={"expiration": "1.5"}),
        Message(b"", properties={"expiration": str(2**32)}),
        Message(b"", properties={"expiration": "²"}),
    ],
)
def test_what_amqp_cannot_express_is_refused(message: Message) -> None:
    with pytest.raises(ValueError, match=r"cannot be written as AMQP|and a frame has"):
        FrameWriter(3, _FRAME_MAX).publish(message, "", "q")
