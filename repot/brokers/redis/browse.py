"""Browse kombu's lists on Redis."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from redis import ResponseError

from repot.brokers.browse import Browsed, Discard, Forward, Keep
from repot.brokers.message import to_redis
from repot.brokers.redis.lists import list_for, lists_of, not_a_list, read_element
from repot.errors import FactUnknown, Unroutable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from repot.brokers.browse import Decide
    from repot.brokers.message import Message
    from repot.brokers.redis.journal import Ask

#: Elements that are read together: of large ones fewer.
_PAGE, _PAGE_BYTES = 500, 32 << 20

#: Removes the exact element from one list, the oldest first, and pushes another on the next list; both or neither:
#: Redis does not undo what a script did before it failed, so the type of the other key is asked first.
_MOVE = """
local kind = redis.call('TYPE', KEYS[2]).ok
if kind ~= 'list' and kind ~= 'none' then return -1 end
if redis.call('LREM', KEYS[1], -1, ARGV[1]) == 0 then return 0 end
redis.call('LPUSH', KEYS[2], ARGV[2])
return 1
"""


def browse(client: Any, queue: str, decide: Decide, keys: Mapping[str, Any]) -> Browsed:  # noqa: ANN401 - redis.Redis
    """Visit each message, the oldest of a list first, and do what `decide` returns.

    A kept message is not touched. An element that is not an envelope of kombu's is a message without headers whose
    body is the element.

    Raises:
        FactUnknown: the queue's key holds something other than a list.
        Unroutable: the key of the queue to forward to holds something other than a list.
        redis.RedisError: Redis did not answer.
    """
    browsed = Browsed()
    move = client.register_script(_MOVE)
    for name in lists_of(queue, keys):
        # producers push on the left; the list is read whole, so removing does not shift what is still to be visited
        for element in reversed(_elements(client, name)):
            decision = decide(read_element(element)[0])
            match decision:
                case Keep():
                    browsed.kept += 1
                case Discard():
                    removed = client.lrem(name, -1, element)
                    browsed.discarded, browsed.gone = browsed.discarded + bool(removed), browsed.gone + (not removed)
                case Forward(message, target):
                    into = list_for(message, target, keys)
                    moved = move(keys=[name, into], args=[element, to_redis(message, target, str(uuid4()))])
                    if moved < 0:
                        raise Unroutable(not_a_list(into), hint="Name another queue; the message stays where it was.")
                    browsed.forwarded, browsed.gone = browsed.forwarded + bool(moved), browsed.gone + (not moved)
    return browsed


def scan(client: Any, queue: str, keys: Mapping[str, Any], ask: Ask) -> Iterator[Message]:  # noqa: ANN401 - redis.Redis
    """Yield each message, the oldest of a list first, and change nothing.

    Raises:
        FactUnknown: the queue's key holds something other than a list.
        BrokerUnreachable: Redis did not answer.
    """
    for name in lists_of(queue, keys):
        seen, size = 0, 1
        while page := ask(partial(_elements, client, name, -seen - size, -seen - 1)):
            seen += len(page)
            fitting = _PAGE_BYTES * len(page) // max(1, sum(map(len, page)))
            # what comes next may be larger
            size = max(1, min(_PAGE, fitting, 4 * size))
            yield from (read_element(element)[0] for element in reversed(page))


def _elements(client: Any, name: str, first: int = 0, last: int = -1) -> list[str]:  # noqa: ANN401
    try:
        return list(client.lrange(name, first, last))
    except ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
        raise FactUnknown(not_a_list(name), hint="Is the name right? Another program uses this key.") from error
