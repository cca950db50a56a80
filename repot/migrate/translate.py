"""Translate a message for its target broker, or say why it has to be quarantined. Bodies are never changed or loaded.

What both brokers understand stays as it is: body, compression, task headers with `eta` and `expires`, correlation id.
What one of them means differently is translated: priorities, the time to live, delays; the broker's own marks of a
delivery stay behind.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from kombu.serialization import prepare_accept_content, registry  # type: ignore[attr-defined]

from repot.brokers.headers import MAYBE_TWICE_HEADER, MOVE_HEADER, instant
from repot.brokers.message import EncodedHeaders, Message, media_type, read_json, with_headers
from repot.brokers.moving import Outgoing, QueueTraits
from repot.deadletter.dead_letter import HEADER, Death, make_dead_letter
from repot.deadletter.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery import Celery

    from repot.brokers.headers import MoveStamp

#: RabbitMQ's marks of deliveries; one that goes to RabbitMQ again would be taken for a loop (celery#9867). `CC` and
#: `BCC` have been obeyed: with them RabbitMQ would put copies into other queues once more.
_DELIVERY_HEADERS = frozenset(("x-death", "x-delivery-count", "x-acquired-count", "redelivered", "CC", "BCC"))
_DELIVERY_HEADER_PREFIXES = ("x-first-death-", "x-last-death-")

#: Celery's serializers whose bodies a worker may load without running code of theirs.
_SAFE_TYPES = ("application/json", "application/x-msgpack", "application/x-yaml", "application/data", "text/plain")
_PICKLE = "application/x-python-serialize"
_JSON = "application/json"
_HIGHEST = 9

#: Headers and properties share one AMQP frame of 128 KiB; some of it is for what a dead letter adds.
_MAX_HEADER_BYTES = 110_000
#: Of a header's name, and of what AMQP adds to a header.
_MAX_NAME_BYTES, _OVERHEAD_BYTES = 255, 8


class PriorityPolicy(StrEnum):
    """What happens to a priority between brokers that order them in opposite ways."""

    INVERT = "invert"
    KEEP = "keep"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A message that is kept as a dead letter; `at_source` where the target cannot hold it either."""

    dead_letter: Outgoing
    reason: str
    at_source: bool = False


Translated = Outgoing | Quarantine


@dataclass(frozen=True, slots=True)
class Rules:
    """How the messages of a move are translated.

    Attributes:
        priority: what happens to priorities.
        raw: move bodies of any content type, also pickled ones.
        queues: source queue -> target queue.
        route: returns the target queue of a task by its name, or an empty text; None if that is not asked for.
        dead_letters_of: returns the dead-letter queue of a queue.
        accepted: the content types that the application's workers take.
    """

    priority: PriorityPolicy = PriorityPolicy.INVERT
    raw: bool = False
    queues: Mapping[str, str] = field(default_factory=dict)
    route: Callable[[str], str] | None = None
    dead_letters_of: Callable[[str], str] = "{}.dead".format
    accepted: frozenset[str] = frozenset()

    def target_of(self, queue: str, message: Message) -> str:
        """Return the queue that a message of a source queue goes to."""
        routed = self.route(str(message.headers.get("task") or "")) if self.route else ""
        return routed or self.queues.get(queue, queue)


@dataclass(frozen=True, slots=True)
class Translation:
    """Translates the messages of one source queue."""

    queue: str
    source: QueueTraits
    target: QueueTraits
    rules: Rules
    #: Traits of the target for another queue than the usual one.
    traits_of: Callable[[str], QueueTraits]

    def translate(self, message: Message, now: float) -> Translated:
        """Return what to send, and where."""
        if refusal := self._refusal(message, now):
            return self.quarantine(message, *refusal)
        queue = self.goal_of(message)
        target = self.traits_of(queue)
        headers, properties = _own_headers(message), self._properties(message, target, now)
        changed = Message(message.body, message.content_type, message.content_encoding, headers, properties)
        return Outgoing(queue, changed, _delay_s(message, now) if target.delays else 0)

    def goal_of(self, message: Message) -> str:
        """Return the queue that a message goes to."""
        return self.rules.target_of(self.queue, message)

    def quarantine(self, message: Message, reason: Reason, why: str) -> Quarantine:
        """Return the dead letter for a message that cannot be delivered."""
        at_source = reason in (Reason.TOO_LARGE, Reason.UNSUPPORTED)
        queue = self.queue if at_source else self.rules.queues.get(self.queue, self.queue)
        now = datetime.now(UTC).timestamp()
        death = Death(reason, queue, died_at=now, exception="Quarantined", message=why)
        own = replace(message, headers=_own_headers(message))
        dead_letter = own if HEADER in own.headers else make_dead_letter(own, death)
        return Quarantine(Outgoing(self.rules.dead_letters_of(queue), dead_letter), reason, at_source)

    def _refusal(self, message: Message, now: float) -> tuple[Reason, str] | None:
        """Return why a message cannot be delivered: a reason and a text."""
        size = len(message.body)
        if self.target.max_bytes is not None and size > self.target.max_bytes:
            return Reason.TOO_LARGE, f"the body has {size} bytes, and the target takes {self.target.max_bytes}"
        if self.target.limits_headers and not _fit_a_frame(message.headers):
            return Reason.TOO_LARGE, f"its headers have more than {_MAX_HEADER_BYTES} bytes"
        return self._unfit(message, now)

    def _unfit(self, message: Message, now: float) -> tuple[Reason, str] | None:
        """Return why no worker could run a message that the target can hold."""
        if not self.rules.raw and (unreadable := _unreadable(message, self.rules.accepted)):
            return unreadable
        if (left := _lifetime_s(message, now)) is not None and left <= 0:
            return Reason.EXPIRED, "it had expired before it was moved"
        return None

    def _properties(self, message: Message, target: QueueTraits, now: float) -> dict[str, Any]:
        # RabbitMQ compares `user_id` with the user of the connection
        properties = {name: value for name, value in message.properties.items() if name not in ("priority", "user_id")}
        if "expiration" in properties:
            left = _lifetime_s(message, now)
            properties["expiration"] = _text(properties["expiration"] if left is None else max(1, round(left * 1000)))
        properties["delivery_mode"] = 2
        priority = self._priority(message.properties.get("priority"), target)
        return properties if priority is None else properties | {"priority": priority}

    def _priority(self, stated: object, target: QueueTraits) -> int | None:
        if self.rules.priority is PriorityPolicy.DROP or not self.source.orders:
            return None
        # omitted means 0 on both
        given = stated if isinstance(stated, int) and not isinstance(stated, bool) else 0
        if self.rules.priority is PriorityPolicy.KEEP or self.source.lowest_first == target.lowest_first:
            return given
        return _HIGHEST - max(0, min(given, _HIGHEST))


def stamped(outgoing: Outgoing, stamp: MoveStamp, *, maybe_twice: bool) -> Outgoing:
    """Return a message with the headers of its move; a mark of an earlier move stays."""
    message = outgoing.message
    own = {MOVE_HEADER: str(stamp)} | ({MAYBE_TWICE_HEADER: True} if maybe_twice else {})
    headers = with_headers(message.headers, own)
    changed = Message(message.body, message.content_type, message.content_encoding, headers, message.properties)
    return Outgoing(outgoing.queue, changed, outgoing.delay_s)


def _own_headers(message: Message) -> Mapping[str, Any]:
    marks = [one for one in message.headers if one in _DELIVERY_HEADERS or one[:2] == "x-"]
    if not marks:
        return message.headers
    found = dict(message.headers)
    for name in marks:
        if name in _DELIVERY_HEADERS or name.startswith(_DELIVERY_HEADER_PREFIXES):
            del found[name]
    return found


def accepted_by(app: Celery) -> frozenset[str]:
    """Return the content types that an application's workers take; those of serializers that are registered here."""
    names = [name for name in app.conf.accept_content or () if "/" in name or name in registry.name_to_type]
    return frozenset(prepare_accept_content(names) or ())


def _unreadable(message: Message, accepted: frozenset[str]) -> tuple[Reason, str] | None:
    kind = media_type(message.content_type)
    if kind == _PICKLE and kind not in accepted:
        return Reason.PICKLED, "its body is pickled; --raw moves it as it is"
    if kind not in _SAFE_TYPES and kind not in accepted:
        return Reason.UNDECODABLE, f"its content type is {message.content_type!r}; --raw moves it as it is"
    if kind == _JSON and not message.headers.get("compression"):
        try:
            read_json(message.body)
        except (ValueError, RecursionError):
            return Reason.UNDECODABLE, "its body is not JSON, as its content type says"
    return None


def _lifetime_s(message: Message, now: float) -> float | None:
    """Return for how long a message may still wait; None if that is unknown or unlimited."""
    if (expires_at := instant(message.headers.get("expires"))) is not None:
        return expires_at - now
    if "expiration" not in message.properties:
        return None
    try:
        ttl_s = int(message.properties["expiration"]) / 1000
        return ttl_s - (now - float(message.properties["timestamp"]))
    except (KeyError, TypeError, ValueError):
        # without the time of its sending the rest is unknown
        return None


def _text(expiration: object) -> object:
    """Return a time to live as AMQP has it: a whole number of milliseconds becomes a text, anything else stays."""
    is_whole = isinstance(expiration, float) and expiration.is_integer()
    is_number = is_whole or (isinstance(expiration, int) and not isinstance(expiration, bool))
    return str(int(expiration)) if is_number else expiration  # type: ignore[call-overload] # a number


def _delay_s(message: Message, now: float) -> int:
    due_at = instant(message.headers.get("eta"))
    return 0 if due_at is None else max(0, math.ceil(due_at - now))


def _fit_a_frame(headers: Mapping[str, Any]) -> bool:
    """Return whether headers fit into one frame, by a bound that is quick to calculate where that suffices."""
    if isinstance(headers, EncodedHeaders):
        return len(headers.encoded) <= _MAX_HEADER_BYTES
    bound = len(headers) * (_MAX_NAME_BYTES + _OVERHEAD_BYTES)
    for value in headers.values():
        kind = type(value)
        if kind is str or kind is bytes:
            bound += 4 * len(value)
        elif value and (kind is dict or kind is list):
            bound += 4 * len(repr(value))
    return bound <= _MAX_HEADER_BYTES or _header_bytes(headers) <= _MAX_HEADER_BYTES


def _header_bytes(headers: Mapping[str, Any]) -> int:
    """Return about how long headers are."""
    found = 0
    for name, value in headers.items():
        found += len(name) + _OVERHEAD_BYTES
        if isinstance(value, str | bytes):
            # up to four bytes for a character
            found += len(value.encode(errors="replace")) if isinstance(value, str) else len(value)
        elif isinstance(value, dict | list):
            found += len(repr(value))
    return found
