"""Name the queue of a message that is addressed by an exchange and a key, which mean nothing on another broker."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from repot.config import delays

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def queues_at(queues: Iterable[Any], exchange: str, key: str) -> list[str]:
    """Return the names of the queues that receive what is sent to an exchange with a key, by their declarations."""
    if exchange in delays.LAST_EXCHANGES:
        # delivered after its delay
        delayed = delays.queue_of(key)
        return [delayed] if delayed else []
    if not exchange:
        return [key] if key else []
    return list(dict.fromkeys(str(queue.name) for queue in queues if _receives(queue, exchange, key)))


def only_queue_at(queues: Mapping[str, Any], routed: Mapping[str, Any]) -> str | None:
    """Return the one queue that a message reaches by its exchange and key; empty for one that is sent to its queue.

    None where the application declares no queue that is bound there, or several.
    """
    exchange = str(getattr(routed.get("exchange"), "name", routed.get("exchange")) or "")
    if not exchange:
        return ""
    found = queues_at(queues.values(), exchange, routed.get("routing_key") or "")
    return found[0] if len(found) == 1 else None


def _receives(queue: Any, exchange: str, key: str) -> bool:  # noqa: ANN401 - kombu's Queue
    bound = [*(queue.bindings or ()), *([queue] if queue.exchange is not None else [])]
    return any(_matches(one, exchange, key) for one in bound)


def _matches(binding: Any, exchange: str, key: str) -> bool:  # noqa: ANN401 - kombu's binding or Queue
    if str(getattr(binding.exchange, "name", binding.exchange) or "") != exchange:
        return False
    kind, pattern = getattr(binding.exchange, "type", "direct"), binding.routing_key or ""
    if kind == "topic":
        return _pattern(pattern).fullmatch(key) is not None
    return kind == "fanout" or pattern == key


@lru_cache(maxsize=1000)
def _pattern(binding_key: str) -> re.Pattern[str]:
    """Return the keys that a binding of a topic exchange matches: `*` is one word, `#` any number of them."""
    words = binding_key.split(".")
    text = ""
    for number, word in enumerate(words):
        if word == "#":
            text += r"(?:[^.]+(?:\.|$))*" if number == 0 else r"(?:\.[^.]+)*"
        else:
            part = r"[^.]+" if word == "*" else re.escape(word)
            text += part if number == 0 or text == r"(?:[^.]+(?:\.|$))*" else rf"\.{part}"
    return re.compile(text)
