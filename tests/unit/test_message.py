"""A message, and how each broker keeps it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import amqp
import pytest
from hypothesis import given
from kombu import Connection, Queue
from kombu.transport.virtual import Message as VirtualMessage
from kombu.utils import json as kombu_json

from repot.brokers.message import Message, from_amqp, from_kombu, from_redis, publish, read_json, to_amqp, to_redis
from support.messages import messages

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def channel() -> Iterator[Any]:
    """Of kombu's transport in memory, which keeps messages as Redis does."""
    with Connection("memory://") as connection:
        yield connection.default_channel


@given(message=messages())
def test_redis_keeps_every_byte(message: Message) -> None:
    assert message == from_redis(to_redis(message, "queue", "tag"))


@given(message=messages())
def test_amqp_keeps_every_byte(message: Message) -> None:
    assert message == from_amqp(to_amqp(message))


@given(message=messages())
def test_a_worker_has_what_was_sent(message: Message) -> None:
    """Although kombu unpacks what is compressed, and decodes what it can."""
    with Connection("memory://") as connection:
        channel: Any = connection.default_channel
        delivered = VirtualMessage(json.loads(to_redis(message, "queue", "tag")), channel=channel)
        assert message == from_kombu(delivered)


def test_an_envelope_is_what_kombu_reads(channel: Any) -> None:
    """Written by kombu and by us: the same but for the delivery tag."""
    Queue("compared")(channel).declare()
    message = Message(b"[1]", "application/json", "utf-8", {"id": "x"}, {"priority": 3, "correlation_id": "x"})
    publish(channel, message, "compared")
    kombus = channel._get("compared")
    ours = json.loads(to_redis(message, "compared", kombus["properties"]["delivery_tag"]))
    assert kombus == ours


def test_what_json_does_not_have_is_written_as_kombu_does() -> None:
    """Whole numbers of any size as well."""
    headers = {"eta": datetime(2026, 11, 22, 1, 2, 3, tzinfo=UTC), "key": UUID(int=7), "large": 2**80, "half": "\ud800"}
    envelope = to_redis(Message(b"1", headers=headers), "queue", "tag")
    assert headers == kombu_json.loads(envelope)["headers"] == from_redis(envelope).headers
    assert '{"__type__": "datetime"' in envelope


@pytest.mark.parametrize(
    "text",
    [
        "[" * 300 + "]" * 300,
        '{"a": NaN, "b": -Infinity}',
        '"\\ud800"',
        '"\ud800"',
        f"[{2**70}, 1e400]",
        '{"a": 1, "a": 2}',
    ],
)
def test_json_is_read_as_by_the_standard_library(text: str) -> None:
    assert repr(json.loads(text)) == repr(read_json(text))


@pytest.mark.parametrize("text", ["", "[1,]", "{1: 2}", '"\x01"', "nan", b"\xff", b'"\xff"'])
def test_what_is_no_json_for_the_standard_library_is_none(text: str | bytes) -> None:
    for read in (json.loads, read_json):
        with pytest.raises((json.JSONDecodeError, UnicodeDecodeError)):
            read(text)


def test_the_mark_of_a_redelivery_stays_behind() -> None:
    """It is written into the headers, where Celery would carry it into retries."""
    envelope = json.loads(to_redis(Message(b"1", headers={"id": "x"}), "queue", "tag"))
    envelope["headers"]["redelivered"] = True
    envelope["properties"]["delivery_info"]["redelivered"] = True
    assert from_redis(json.dumps(envelope)).headers == {"id": "x"}


def test_a_body_that_was_not_packed_is_read_as_text() -> None:
    """`body_encoding` is missing where a channel sets it to None."""
    envelope = {"body": "[1, \u00fc]", "properties": {}, "content-type": "application/json"}
    assert "[1, \u00fc]".encode() == from_redis(json.dumps(envelope)).body


ODD = (
    "",
    "1",
    "[]",
    "{}",
    '{"properties": 1}',
    '{"properties": "abc"}',
    '{"properties": {}, "headers": [[1, 2]]}',
    '{"properties": {"delivery_info": "x"}}',
    '{"properties": {}, "body": 1000000}',
    '{"properties": {}, "headers": {"x": {"__type__": "uuid", "__value__": 5}}}',
    '{"properties": {}, "body": {"__type__": "bytes"}}',
    "[" * 10**5,
)


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_what_is_no_envelope_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"envelope|Expecting|hexadecimal"):
        from_redis(text)


def test_rabbitmq_decodes_bodies_and_they_are_encoded_again() -> None:
    """A channel of py-amqp decodes by default."""
    found = amqp.Message("\u00fc", content_encoding="utf-8")
    assert "\u00fc".encode() == from_amqp(found).body
