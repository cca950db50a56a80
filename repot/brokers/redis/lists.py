"""kombu's lists on Redis: one for each step of a queue's priority.

Producers push on the left, workers pop on the right.
"""

from __future__ import annotations

from bisect import bisect
from typing import TYPE_CHECKING, Any

from repot.brokers.message import Message, read_redis

if TYPE_CHECKING:
    from collections.abc import Mapping

_HIGHEST_PRIORITY = 9


def lists_of(queue: str, keys: Mapping[str, Any]) -> list[str]:
    """Return the names of a queue's lists, in the order in which workers read them; `keys` are transport options."""
    return [_list_of(queue, step, keys) for step in keys["priority_steps"]]


def _list_of(queue: str, step: int, keys: Mapping[str, Any]) -> str:
    return f"{keys['global_keyprefix']}{queue}{keys['sep'] if step else ''}{step or ''}"


def list_for(message: Message, queue: str, keys: Mapping[str, Any]) -> str:
    """Return the list that kombu would put a message into: a priority is rounded down to a step."""
    try:
        priority = max(min(int(message.properties["priority"]), _HIGHEST_PRIORITY), 0)
    except (KeyError, TypeError, ValueError):
        priority = 0
    steps = keys["priority_steps"]
    return _list_of(queue, steps[bisect(steps, priority) - 1], keys)


def read_element(element: str) -> tuple[Message, bool]:
    """Read an element, and whether it is marked as redelivered.

    An element that is not kombu's envelope is a message without headers whose body is the element.
    """
    try:
        return read_redis(element)
    except ValueError:
        return Message(element.encode(errors="surrogateescape")), False


def not_a_list(name: str) -> str:
    """Say that the value of a key is not a list."""
    return f"the key {name!r} on Redis holds no list, so it is no queue"
