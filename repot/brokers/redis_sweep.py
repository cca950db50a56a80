"""Going through kombu's lists on Redis."""

from __future__ import annotations

from bisect import bisect
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from redis import ResponseError

from repot.brokers.message import Message, from_redis, to_redis
from repot.brokers.sweep import Discard, Forward, Keep, Swept
from repot.errors import FactUnknown, Unroutable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from repot.brokers.sweep import Decide

#: Takes the exact element off one list, the oldest first, and puts another on the next; both or neither: what a script
#: did before it fails is not undone, so the type of the other is asked first.
_MOVE = """
local kind = redis.call('TYPE', KEYS[2]).ok
if kind ~= 'list' and kind ~= 'none' then return -1 end
if redis.call('LREM', KEYS[1], -1, ARGV[1]) == 0 then return 0 end
redis.call('LPUSH', KEYS[2], ARGV[2])
return 1
"""

_HIGHEST_PRIORITY = 9


def lists_of(queue: str, keys: Mapping[str, Any]) -> list[str]:
    """A queue's lists, one for each step of priority; `keys` are kombu's transport options."""
    prefix, separator = keys["global_keyprefix"], keys["sep"]
    return [f"{prefix}{queue}{f'{separator}{step}' if step else ''}" for step in keys["priority_steps"]]


def sweep(client: Any, queue: str, decide: Decide, keys: Mapping[str, Any]) -> Swept:  # noqa: ANN401 - redis.Redis
    """Ask what to do with each message, the oldest of a list first, and do it.

    What is kept is not touched. An element that is no message of kombu's is shown as
    a message without headers whose body it is.

    Raises:
        FactUnknown: what lies there is no list, and so no queue.
        Unroutable: what lies at the key of the queue to forward to is none.
        redis.RedisError: Redis did not answer.
    """
    swept = Swept()
    move = client.register_script(_MOVE)
    for name in lists_of(queue, keys):
        # producers push on the left; a list that is read whole is not moved under our feet by what we remove
        for element in reversed(_elements(client, name)):
            decision = decide(_message(element))
            match decision:
                case Keep():
                    swept.kept += 1
                case Discard():
                    removed = client.lrem(name, -1, element)
                    swept.discarded, swept.gone = swept.discarded + bool(removed), swept.gone + (not removed)
                case Forward(message, target):
                    into = _list_for(message, target, keys)
                    moved = move(keys=[name, into], args=[element, to_redis(message, target, str(uuid4()))])
                    if moved < 0:
                        raise Unroutable(_no_list(into), hint="Name another queue; the message stays where it was.")
                    swept.forwarded, swept.gone = swept.forwarded + bool(moved), swept.gone + (not moved)
    return swept


def _elements(client: Any, name: str) -> list[str]:  # noqa: ANN401
    try:
        return list(client.lrange(name, 0, -1))
    except ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
        raise FactUnknown(_no_list(name), hint="Is the name right? Somebody else uses this key.") from error


def _no_list(name: str) -> str:
    return f"the key {name!r} on Redis holds no list, so it is no queue"


def _message(element: str) -> Message:
    try:
        return from_redis(element)
    except ValueError:
        return Message(element.encode(errors="surrogateescape"))


def _list_for(message: Message, queue: str, keys: Mapping[str, Any]) -> str:
    """The list that kombu would put it into: a priority is rounded down to a step."""
    try:
        priority = max(min(int(message.properties["priority"]), _HIGHEST_PRIORITY), 0)
    except (KeyError, TypeError, ValueError):
        priority = 0
    return lists_of(queue, keys)[bisect(keys["priority_steps"], priority) - 1]
