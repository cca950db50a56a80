"""Deliveries as RabbitMQ sends them: what is read is what py-amqp reads."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from amqp import spec
from amqp.method_framing import frame_handler
from amqp.serialization import dumps, loads
from hypothesis import given
from hypothesis import strategies as st

from repot.brokers.message import EncodedHeaders, Message, from_amqp, to_amqp, with_headers
from repot.brokers.rabbitmq.deliveries import Delivery, read_deliveries
from repot.brokers.rabbitmq.frames import FrameWriter
from repot.brokers.rabbitmq.tables import Layouts
from support.messages import messages

if TYPE_CHECKING:
    from collections.abc import Mapping

_HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
#: Those that other producers than Celery's write, and texts that are not UTF-8.
_VALUES = st.sampled_from((1.5, 2**40, b"\xff", b"text", True, 7)) | st.integers(0, 2**31 - 1)


def _frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, 1, len(payload)) + payload + b"\xce"


def _sent(message: Message, tag: int = 1, key: str = "q", parts: int = 1) -> bytes:
    """What RabbitMQ sends, with the body in so many frames."""
    method = struct.pack(">HH", *spec.Basic.Deliver) + dumps("sLbss", ("tag", tag, tag % 2, "exchange", key))
    properties = to_amqp(message)._serialize_properties()  # type: ignore[attr-defined]
    header = struct.pack(">HHQ", 60, 0, len(message.body)) + properties
    size = -(-len(message.body) // parts) or 1
    bodies = [_frame(3, message.body[at : at + size]) for at in range(0, len(message.body), size)]
    return b"".join((_frame(1, method), _frame(2, header), *bodies))


def _by_py_amqp(data: bytes) -> list[Delivery]:
    found: list[Delivery] = []

    def add(channel: int, method: Any, payload: bytes, content: Any) -> None:
        del method
        (_, tag, redelivered, _, key), _ = loads("sLbss", payload, 4)
        found.append(Delivery(channel, tag, redelivered, key, from_amqp(content)))

    class _Connection:
        bytes_recv = 0

    handle = frame_handler(_Connection(), add)
    at = 0
    while at < len(data):
        kind, channel, length = struct.unpack_from(">BHI", data, at)
        handle((kind, channel, data[at + 7 : at + 7 + length]))
        at += length + 8
    return found


@given(sent=st.lists(messages(), min_size=1, max_size=3), key=st.text(max_size=20))
def test_deliveries_are_read_as_py_amqp_does(sent: list[Message], key: str) -> None:
    data = b"".join(_sent(message, tag, key) for tag, message in enumerate(sent, start=1))
    found, used, is_incomplete = read_deliveries(data)
    assert (_by_py_amqp(data), len(data), True) == (found, used, is_incomplete)
    assert sent == [one.message for one in found]


@given(headers=st.dictionaries(st.text(max_size=10), _VALUES | st.lists(_VALUES, max_size=2), max_size=5))
def test_headers_of_other_producers_are_read_as_py_amqp_does(headers: Mapping[str, Any]) -> None:
    data = _sent(Message(b"x", headers=headers))
    assert _by_py_amqp(data) == read_deliveries(data)[0]


_NAMES = ("lang", "task", "id", "eta", "retries", "ignore_result", "stamps", "timelimit")
_CELERYS = st.sampled_from((None, True, False, 0, 7, [None, 30], {"a": "b"}, {}, 1.5, 2**40, b"\xff")) | st.text(
    max_size=40
)


@given(sent=st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(_NAMES, _CELERYS)), min_size=2, max_size=12))
def test_headers_are_read_by_the_layout_of_earlier_ones_as_py_amqp_does(sent: list[dict[str, Any]]) -> None:
    """Most have the names, and some the types, of one before; few layouts are kept."""
    data = b"".join(_sent(Message(b"x", headers=headers)) for headers in sent)
    assert read_deliveries(data)[0] == _by_py_amqp(data)


def test_a_name_that_is_there_twice_has_its_last_value() -> None:
    layouts = Layouts()
    for number in range(3):
        assert layouts.read(b"\1aI" + struct.pack(">i", number) + b"\1aV") == {"a": None}


@pytest.mark.parametrize("more", [b"", b"\1bV"])
def test_a_table_that_goes_on_after_a_layout_is_another_one(more: bytes) -> None:
    layouts = Layouts()
    assert layouts.read(b"\1aI\0\0\0\1") == {"a": 1}
    assert layouts.read(b"\1aI\0\0\0\2" + more) == ({"a": 2, "b": None} if more else {"a": 2})


@given(message=messages(), cut=st.integers(min_value=0))
def test_what_has_not_come_completely_is_waited_for(message: Message, cut: int) -> None:
    first, second = _sent(message, 1), _sent(message, 2)
    found, used, is_incomplete = read_deliveries(first + second[: cut % len(second)])
    assert ([1], len(first), True) == ([one.tag for one in found], used, is_incomplete)


@given(message=messages().filter(lambda one: len(one.body) > 1))
def test_what_is_no_delivery_in_three_frames_is_left(message: Message) -> None:
    one, qos = _sent(message), _frame(1, struct.pack(">HH", *spec.Basic.QosOk))
    for other in (_HEARTBEAT, qos, _sent(message, parts=2), one[one.index(b"\xce\x02") + 1 :]):
        found, used, is_incomplete = read_deliveries(one + other + one)
        assert (1, len(one), False) == (len(found), used, is_incomplete)
        assert ([], 0, False) == read_deliveries(other + one) == read_deliveries(other)


@given(
    message=messages(),
    more=st.lists(
        st.dictionaries(st.text(max_size=3), st.sampled_from((1, True, "x", None, [1], {"a": 1}))), max_size=2
    ),
)
def test_headers_that_are_passed_on_are_those_that_would_be_written(
    message: Message, more: list[dict[str, Any]]
) -> None:
    """They keep their encoding; a header that is there already is replaced, and stands where it stood."""
    read = read_deliveries(_sent(message))[0][0].message
    for added in more:
        read = replace(read, headers=with_headers(read.headers, added))
        message = replace(message, headers={**message.headers, **added})
    assert read == message
    passed_on, written = (FrameWriter(1, 1 << 20).publish(one, "", "q") for one in (read, message))
    assert passed_on == written


def test_headers_of_a_task_are_not_encoded_again() -> None:
    read = read_deliveries(_sent(Message(b"", headers={"id": "1", "eta": None})))[0][0].message
    headers = with_headers(read.headers, {"repot": "m"})
    assert isinstance(headers, EncodedHeaders)
    assert headers.added == ("repot",)
