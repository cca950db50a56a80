"""Redact a dead letter's payload. Only JSON is read: loading pickle or YAML can run code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from repot.brokers.message import media_type
from repot.masking import MASK

if TYPE_CHECKING:
    from repot.brokers.message import Message

#: Shorter values occur in too many texts by chance.
_MIN_SECRET_LENGTH = 4

_MAX_DEPTH = 100


@dataclass(frozen=True, slots=True)
class Redaction:
    """Hides the values of some names: in payloads, and wherever else they occur in the output."""

    names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, names: tuple[str, ...]) -> Redaction:
        """Return the redaction of these names, ignoring case."""
        return cls(frozenset(name.lower() for name in names))

    def payload(self, message: Message) -> dict[str, Any]:
        """Return the redacted arguments of a task; for a payload other than JSON its type and size."""
        found = _decoded(message)
        if isinstance(found, _Unreadable):
            return {"hidden": found.reason, "content_type": message.content_type, "bytes": len(message.body)}
        if _is_call(found):
            return {"args": self._redacted(found[0], named=False), "kwargs": self._redacted(found[1], named=True)}
        return {"body": self._redacted(found, named=False)}

    def text(self, message: Message, text: str) -> str:
        """Return an exception's text; masked if the payload cannot be read, as any word may be secret then."""
        return MASK if self.names and text and isinstance(_decoded(message), _Unreadable) else text

    def scrubbed(self, message: Message, data: dict[str, Any]) -> dict[str, Any]:
        """Return the data with the payload's hidden values masked in every text."""
        found = _decoded(message)
        if not self.names or isinstance(found, _Unreadable):
            return data
        parts = ((found[0], False), (found[1], True)) if _is_call(found) else ((found, False),)
        secrets = {word for part, named in parts for word in _secret_words(self._hidden_values(part, named=named))}
        longest_first = sorted(secrets, key=len, reverse=True)

        def scrub(value: object) -> object:
            if isinstance(value, str):
                for secret in longest_first:
                    value = value.replace(secret, MASK)
                return value
            if isinstance(value, Mapping):
                return {name: scrub(inner) for name, inner in value.items()}
            return [scrub(inner) for inner in value] if isinstance(value, list) else value

        return {name: value if name in _EXEMPT else scrub(value) for name, value in data.items()}

    def _redacted(self, value: object, *, named: bool) -> object:
        """Redact a value; with `named` False it has no name, so it may be one of those to hide."""
        if isinstance(value, Mapping):
            return {
                key: MASK if str(key).lower() in self.names else self._redacted(inner, named=True)
                for key, inner in value.items()
            }
        if isinstance(value, list):
            return [self._redacted(one, named=named) for one in value]
        return value if named or not self.names or isinstance(value, bool | None) else MASK

    def _hidden_values(self, value: object, *, named: bool) -> Iterator[object]:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                if str(key).lower() in self.names:
                    yield inner
                else:
                    yield from self._hidden_values(inner, named=True)
        elif isinstance(value, list):
            for one in value:
                yield from self._hidden_values(one, named=named)
        elif not named:
            yield value


#: Fields that identify a dead letter, or that repot wrote.
_EXEMPT = ("id", "task", "reason", "queue", "dead_queue", "broker", "worker", "sent_at", "died_at", "content_type")


@dataclass(frozen=True, slots=True)
class _Unreadable:
    reason: str


def _decoded(message: Message) -> Any:  # noqa: ANN401 - JSON
    if media_type(message.content_type) != "application/json":
        return _Unreadable("not JSON; no other format is loaded")
    if message.headers.get("compression"):
        return _Unreadable("compressed")
    try:
        found = json.loads(message.body)
    except (ValueError, RecursionError):
        return _Unreadable("not valid JSON")
    return found if _is_shallow(found) else _Unreadable("nested too deeply")


def _is_shallow(found: object) -> bool:
    """Whether it can be walked recursively; the JSON parser goes deeper than Python's recursion limit."""
    level = [found]
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, Mapping) else one if isinstance(one, list) else ())
        ]
        if not level:
            return True
    return False


def _is_call(found: object) -> bool:
    return isinstance(found, list) and len(found) > 1 and isinstance(found[0], list) and isinstance(found[1], Mapping)


def _secret_words(values: Iterator[object]) -> Iterator[str]:
    """Return all strings and numbers in these values that are long enough to be searched for."""
    for value in values:
        if isinstance(value, Mapping):
            yield from _secret_words(iter(value.values()))
        elif isinstance(value, list):
            yield from _secret_words(iter(value))
        elif len(str(value)) >= _MIN_SECRET_LENGTH and not isinstance(value, bool | None):
            yield str(value)
