"""Find the queue of each unacknowledged message on Redis.

kombu keeps what all workers hold in one hash: delivery tag -> `[message, exchange, routing key]`, as JSON. The queue is
the one to which kombu would restore it, by the bindings of its exchange. The messages, which may be large, stay in the
server: only the end of each value is read, and only once, because a tag never changes its message.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from repot.brokers.redis import reservation
from repot.errors import DepthUnknown
from repot.upstream.redis_deliveries import bindings_key, bound_queues

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: The end of a value: (exchange, routing key).
Origin = tuple[str, str]

#: Returns every tag of the hash, the end of each value whose tag is not an argument, and how many values were left for
#: the next call: at most as many bytes as the first argument are read at once, because the script blocks Redis.
_ENDS = """
local known, budget, ends, left = {}, tonumber(ARGV[1]), {}, 0
for index = 2, #ARGV do known[ARGV[index]] = true end
local tags = redis.call('HKEYS', KEYS[1])
for _, tag in ipairs(tags) do
  if not known[tag] then
    if budget <= 0 then left = left + 1 else
      local value = redis.call('HGET', KEYS[1], tag)
      budget = budget - #value
      local short = string.sub(value, -300)
      ends[#ends + 1] = tag
      ends[#ends + 1] = string.find(short, '}, ', 1, true) and short or string.sub(value, -4096)
    end
  end
end
return {tags, ends, left}
"""
#: About 20 ms of the server's time.
_BUDGET_BYTES = 16 << 20

#: Maximum number of calls: 1.6 GB of unacknowledged messages.
_ROUNDS = 100

_STRING = r'"(?:[^"\\]|\\.)*"'
_END = re.compile(rf"\}}\s*,\s*({_STRING}|null)\s*,\s*({_STRING}|null)\s*\]\s*$", re.DOTALL)


class InFlight:
    """Counts what workers hold, by queue; remembers the origin of each delivery tag that it has read."""

    def __init__(self, client: Any, keys: Mapping[str, Any]) -> None:  # noqa: ANN401 - redis.Redis
        """Count with `client`; `keys` are kombu's transport options."""
        self._client = client
        self._hash = f"{keys['global_keyprefix']}{keys['unacked_key']}"
        self._keys = keys
        self._ends = client.register_script(_ENDS)
        self._reserved = client.register_script(reservation.COUNT)
        self._origins: dict[str, Origin] = {}

    def count(self, queue: str, lists: Iterable[str]) -> tuple[list[Any], int]:
        """Count a queue's lists, and what workers hold of it or a taker has reserved, all at one moment.

        The first result has LLEN and LINDEX -1 of each list in turn. A message that may belong to several queues, bound
        to one exchange with the same key, counts for each; one that fits no queue counts for every queue.

        Raises:
            DepthUnknown: a value of the hash is not in kombu's format.
            redis.RedisError: Redis did not answer.
        """
        for _ in range(_ROUNDS):
            with self._client.pipeline(transaction=True) as pipeline:
                for name in lists:
                    pipeline.llen(name)
                    # taken from the right: the oldest
                    pipeline.lindex(name, -1)
                self._reserved(keys=reservation.keys_of(queue, self._keys), client=pipeline)
                self._ends(keys=[self._hash], args=[_BUDGET_BYTES, *self._origins], client=pipeline)
                *found, reserved, (tags, ends, left) = pipeline.execute()
            known = self._origins | {tag: _origin(end) for tag, end in zip(ends[::2], ends[1::2], strict=True)}
            self._origins = {tag: known[tag] for tag in tags if tag in known}
            if not left:
                return found, self._held(queue) + reserved
        message = f"Redis holds too many large messages in {self._hash!r} to tell which are of {queue!r}"
        raise DepthUnknown(message)

    def _held(self, queue: str) -> int:
        origins = Counter(self._origins.values())
        tables = {exchange: self._table(exchange) for exchange in {exchange for exchange, _ in origins} if exchange}
        return sum(held for origin, held in origins.items() if _may_return(origin, queue, tables.get(origin[0], ())))

    def _table(self, exchange: str) -> list[Sequence[str]]:
        return bindings(self._client, exchange, self._keys)


def bindings(client: Any, exchange: str, keys: Mapping[str, Any]) -> list[Sequence[str]]:  # noqa: ANN401 - redis.Redis
    """Return the bindings of an exchange (routing key, pattern, queue), as kombu's `get_table`."""
    members = client.smembers(f"{keys['global_keyprefix']}{bindings_key(exchange)}")
    return [tuple(member.split(keys["sep"])) for member in members]


def _may_return(origin: Origin, queue: str, table: Iterable[Sequence[str]]) -> bool:
    """Return whether a message may belong to a queue, as kombu's `_lookup`; the exchange's type is not stored."""
    exchange, key = origin
    if not exchange:
        return key == queue
    # no binding has the key: a fanout exchange ignores it
    bound = bound_queues(table, key) or {row[-1] for row in table}
    return queue in bound or not bound


def _origin(end: str) -> Origin:
    """Read exchange and routing key from the end of a value."""
    found = _END.search(end)
    if found is None:
        message = "a value in the hash of unacknowledged messages on Redis is not one of kombu's"
        raise DepthUnknown(message, hint="Does another program use this database? `unacked_key` names another hash.")
    exchange, key = (json.loads(part) for part in found.groups())
    return str(exchange or ""), str(key or "")
