"""What may be shown of a letter's payload. JSON alone is read; pickle and YAML can run code when they are loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from repot.config.masking import MASK

if TYPE_CHECKING:
    from repot.brokers.message import Message

#: Shorter values stand in too many texts by chance.
_SHORTEST_SECRET = 4

_DEEPEST = 100


@dataclass(frozen=True, slots=True)
class Redaction:
    """Hides the values of some names: in payloads, and wherever else they stand in what is shown."""

    names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, names: tuple[str, ...]) -> Redaction:
        """Of these names, whatever their case."""
        return cls(frozenset(name.lower() for name in names))

    def payload(self, message: Message) -> dict[str, Any]:
        """The arguments of a task as far as they may be shown; for what is not JSON its kind and size."""
        found = _decoded(message)
        if isinstance(found, _Sealed):
            return {"hidden": found.why, "content_type": message.content_type, "bytes": len(message.body)}
        if _is_call(found):
            return {"args": self._shown(found[0], named=False), "kwargs": self._shown(found[1], named=True)}
        return {"body": self._shown(found, named=False)}

    def text(self, message: Message, text: str) -> str:
        """What an exception said; nothing where nobody knows which of its words are to be hidden."""
        return MASK if self.names and text and isinstance(_decoded(message), _Sealed) else text

    def scrubbed(self, message: Message, shown: dict[str, Any]) -> dict[str, Any]:
        """The same data without the values that are hidden in the payload, whatever text they stand in."""
        found = _decoded(message)
        if not self.names or isinstance(found, _Sealed):
            return shown
        parts = ((found[0], False), (found[1], True)) if _is_call(found) else ((found, False),)
        secrets = {word for part, named in parts for word in _words(self._hidden(part, named=named))}
        longest_first = sorted(secrets, key=len, reverse=True)

        def scrub(value: object) -> object:
            if isinstance(value, str):
                for secret in longest_first:
                    value = value.replace(secret, MASK)
                return value
            if isinstance(value, Mapping):
                return {name: scrub(inner) for name, inner in value.items()}
            return [scrub(inner) for inner in value] if isinstance(value, list) else value

        return {name: value if name in _OUR_OWN else scrub(value) for name, value in shown.items()}

    def _shown(self, value: object, *, named: bool) -> object:
        """With `named` False, an argument without a name may be any of those to hide."""
        if isinstance(value, Mapping):
            return {
                key: MASK if str(key).lower() in self.names else self._shown(inner, named=True)
                for key, inner in value.items()
            }
        if isinstance(value, list):
            return [self._shown(one, named=named) for one in value]
        return value if named or not self.names or isinstance(value, bool | None) else MASK

    def _hidden(self, value: object, *, named: bool) -> Iterator[object]:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                if str(key).lower() in self.names:
                    yield inner
                else:
                    yield from self._hidden(inner, named=True)
        elif isinstance(value, list):
            for one in value:
                yield from self._hidden(one, named=named)
        elif not named:
            yield value


#: What a letter is found by, and what repot wrote itself.
_OUR_OWN = ("id", "task", "reason", "queue", "dead_queue", "broker", "worker", "sent_at", "died_at", "content_type")


@dataclass(frozen=True, slots=True)
class _Sealed:
    why: str


def _decoded(message: Message) -> Any:  # noqa: ANN401 - JSON
    if message.content_type != "application/json":
        return _Sealed("not JSON, and nothing else is loaded")
    if message.headers.get("compression"):
        return _Sealed("compressed")
    try:
        found = json.loads(message.body)
    except (ValueError, RecursionError):
        return _Sealed("not valid JSON")
    return found if _is_shallow(found) else _Sealed("nested too deeply")


def _is_shallow(found: object) -> bool:
    """Whether it can be gone through; readers of JSON come deeper than functions that call themselves."""
    level = [found]
    for _ in range(_DEEPEST):
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


def _words(values: Iterator[object]) -> Iterator[str]:
    """All texts and numbers in these values that are long enough to be told from others."""
    for value in values:
        if isinstance(value, Mapping):
            yield from _words(iter(value.values()))
        elif isinstance(value, list):
            yield from _words(iter(value))
        elif len(str(value)) >= _SHORTEST_SECRET and not isinstance(value, bool | None):
            yield str(value)
