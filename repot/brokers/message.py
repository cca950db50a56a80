"""A message, independent of its broker, and its encoding on Redis and on RabbitMQ.

On RabbitMQ a message is an AMQP frame; on Redis kombu keeps a JSON envelope in a list
(`kombu/transport/virtual/base.py`). Bodies are bytes and are never decoded here.
"""

from __future__ import annotations

import binascii
from contextlib import suppress
from dataclasses import dataclass, field
from json import loads
from typing import TYPE_CHECKING, Any

import amqp
from amqp.exceptions import MessageNacked
from kombu.compression import compress
from kombu.utils import json
from pydantic_core import from_json, to_json

from repot.brokers.headers import DEATHS_PROPERTY
from repot.errors import Unroutable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kombu.message import Message as KombuMessage

#: kombu's module makes an encoder for each message.
_encode = json.JSONEncoder().encode
#: How kombu writes a type of its own.
_TYPED = '"__type__"'
#: What JSON has; kombu writes everything else in its own way.
_PLAIN = frozenset((str, int, bool, float, type(None)))

#: AMQP's code for a returned message: no queue is bound to its key.
_NO_ROUTE = 312

#: Properties of one delivery on one broker, not of the message.
_OF_THE_BROKER = ("delivery_tag", "delivery_info", "body_encoding", "redelivered", DEATHS_PROPERTY)

#: AMQP's properties except those that have a field of their own; RabbitMQ keeps no others (amqp/basic_message.py).
_AMQP_PROPERTIES = (
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)


@dataclass(frozen=True, slots=True)
class Message:
    """A message, byte for byte as it was sent.

    `properties` are AMQP's (priority, expiration in milliseconds as text, correlation_id, ...) except those that have a
    field here.
    """

    body: bytes
    content_type: str | None = None
    content_encoding: str | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)


class EncodedHeaders(dict[str, Any]):
    """Headers as AMQP sent them, with their encoding: they go to AMQP again without being encoded once more.

    They are not changed; a copy by `dict` has no encoding.

    Attributes:
        encoded: the fields of the table, without its length.
        added: names of headers that `encoded` lacks.
    """

    __slots__ = ("added", "encoded")

    encoded: bytes
    added: tuple[str, ...]


def with_headers(headers: Mapping[str, Any], more: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return headers with more of them; one that is there already is replaced."""
    if isinstance(headers, EncodedHeaders) and not headers.keys() & more.keys():
        found = EncodedHeaders(headers)
        found.update(more)
        found.encoded, found.added = headers.encoded, (*headers.added, *more)
        return found
    return {**headers, **more}


def media_type(content_type: object) -> str:
    """Return the type that a content type names, without parameters and in lower case (RFC 9110, 8.3.1)."""
    return str(content_type).partition(";")[0].strip().lower()


def from_redis(envelope: str) -> Message:
    """Read kombu's envelope; the mark of a redelivery is Redis's, not the message's, and left out.

    Raises:
        ValueError: it is not an envelope of kombu's.
    """
    return read_redis(envelope)[0]


def read_redis(envelope: str) -> tuple[Message, bool]:
    """Read kombu's envelope, and whether it is marked as redelivered.

    Raises:
        ValueError: it is not an envelope of kombu's.
    """
    try:
        # kombu's own types stand in objects of two fields; looking into each object takes as long as all the rest
        read = json.loads(envelope) if _TYPED in envelope else read_json(envelope)
        properties = _mapping(read["properties"])
        headers = _mapping(read.get("headers") or {})
        body = _unpacked(read.get("body") or "", properties.get("body_encoding"))
        is_redelivered = bool(_mapping(properties.get("delivery_info") or {}).get("redelivered"))
    except (TypeError, KeyError, AttributeError, binascii.Error, RecursionError) as error:
        message = "this is not an envelope of kombu's"
        raise ValueError(message) from error
    if is_redelivered:
        headers.pop("redelivered", None)
    for name in _OF_THE_BROKER:
        properties.pop(name, None)
    found = Message(body, read.get("content-type"), read.get("content-encoding"), headers, properties)
    return found, is_redelivered


def to_redis(message: Message, queue: str, tag: str) -> str:
    """Write kombu's envelope, for a queue and with a unique delivery tag."""
    envelope = {
        "content-encoding": message.content_encoding,
        "content-type": message.content_type,
        "headers": dict(message.headers),
        "properties": {
            **message.properties,
            "body_encoding": "base64",
            "delivery_info": {"exchange": "", "routing_key": queue},
            "delivery_tag": tag,
        },
    }
    # base64 needs no escapes, for which an encoder would look
    body = binascii.b2a_base64(message.body, newline=False).decode()
    return f'{{"body": "{body}", {_written(envelope)[1:]}'


def read_json(text: str | bytes) -> Any:  # noqa: ANN401 - JSON
    """Read JSON as the standard library does, in half its time.

    Raises:
        ValueError, RecursionError: it is not JSON.
    """
    try:
        return from_json(text)
    except (ValueError, TypeError):
        # it takes no half of a surrogate pair, no other encoding, and no more than 200 levels
        return loads(text)


def from_amqp(found: Any) -> Message:  # noqa: ANN401 - amqp.Message
    """Read a message that a channel of py-amqp delivered."""
    properties = dict(found.properties)
    content_type, content_encoding = properties.pop("content_type", None), properties.pop("content_encoding", None)
    headers = properties.pop("application_headers", None) or {}
    return Message(encoded(found.body, content_encoding), content_type, content_encoding, headers, properties)


def to_amqp(message: Message) -> amqp.Message:
    """Write a message that py-amqp publishes, without properties that AMQP does not have."""
    fields = {name: value for name, value in message.properties.items() if name in _AMQP_PROPERTIES}
    fields |= {
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "application_headers": dict(message.headers),
    }
    written = amqp.Message(message.body)
    # py-amqp would add an encoding
    written.properties = {name: value for name, value in fields.items() if value is not None}
    return written


def from_kombu(delivered: KombuMessage) -> Message:
    """Read a message that a worker holds, of any transport.

    kombu decompresses a body on arrival and leaves the header: the body is compressed again, which gives the same bytes
    if kombu compressed it.
    """
    headers = dict(delivered.headers or {})
    body = encoded(delivered.body, delivered.content_encoding)
    if headers.get("compression") and not delivered.errors:
        body = compress(body, headers["compression"])[0]
    if (delivered.delivery_info or {}).get("redelivered"):
        headers.pop("redelivered", None)
    fields = ("content_type", "content_encoding", "application_headers", *_OF_THE_BROKER)
    properties = {name: value for name, value in (delivered.properties or {}).items() if name not in fields}
    return Message(body, delivered.content_type, delivered.content_encoding, headers, properties)


def publish(channel: Any, message: Message, queue: str, exchange: str = "") -> None:  # noqa: ANN401 - kombu's StdChannel
    """Send one message to a queue by its name, over an open channel of any of kombu's transports.

    With an exchange `queue` is the routing key.

    kombu's own producer would serialise a body without a content type. On RabbitMQ the connection needs
    `confirm_publish`: then this returns when the broker has the message. Do not publish again on a channel that raised:
    a late confirm would be taken for the next message's.

    Raises:
        Unroutable: there is no such queue, or it takes no more messages.
        amqp.AMQPError, redis.RedisError, OSError: it was not sent, or the outcome is unknown.
    """
    properties = {name: value for name, value in message.properties.items() if name != "priority"}
    prepared = channel.prepare_message(
        message.body,
        message.properties.get("priority"),
        message.content_type,
        message.content_encoding,
        dict(message.headers),
        properties,
    )
    try:
        channel.basic_publish(prepared, exchange=exchange, routing_key=queue, mandatory=True)
    except MessageNacked as error:
        why = f"the queue {queue!r} takes no more messages"
        raise Unroutable(why, hint="Its policy or its arguments limit its length.") from error
    except amqp.ChannelError as error:
        if getattr(error, "reply_code", 0) != _NO_ROUTE:
            raise
        why = f"there is no queue {queue!r} to put a message into"
        raise Unroutable(why, hint="A worker declares its queues when it starts; or name another queue.") from error


def _written(value: dict[str, Any]) -> str:
    """Write JSON as kombu does, faster where nothing of it needs kombu."""
    if _is_plain(value):
        with suppress(ValueError):
            return to_json(value).decode()
    return _encode(value)


def _is_plain(value: object) -> bool:
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is dict:
        return all(map(_is_plain, value.values()))  # type: ignore[attr-defined]
    return kind is list and all(map(_is_plain, value))  # type: ignore[call-overload]


def _mapping(value: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    if not isinstance(value, dict):
        message = "not an object"
        raise TypeError(message)
    return value


def _unpacked(body: Any, encoding: str | None) -> bytes:  # noqa: ANN401 - JSON
    if not isinstance(body, str | bytes):
        # `bytes(5)` would be five zeros
        message = "not a text"
        raise TypeError(message)
    return binascii.a2b_base64(body) if encoding == "base64" else encoded(body, "utf-8")


def encoded(body: Any, encoding: str | None) -> bytes:  # noqa: ANN401 - str, bytes or a buffer
    """Return a body as bytes: py-amqp decodes one whose encoding it knows; `utf-8` and ASCII survive that unchanged."""
    if not isinstance(body, str):
        return bytes(body)
    try:
        return body.encode(encoding or "utf-8")
    except LookupError:
        # `binary`, for an empty body
        return body.encode()
