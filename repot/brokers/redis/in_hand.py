"""What workers hold on Redis: kombu's unacknowledged deliveries, who may consume, and how a delivery is given back.

Bodies stay in the server: a script returns what follows them. kombu writes the body first, and a quotation mark within
it is escaped, so the end of the body is found without reading the message as JSON.

The tag of a claim (`claims.py`) names its worker, and its score is when that worker last renewed it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from hashlib import sha1
from time import time
from typing import TYPE_CHECKING, Any

from repot.brokers.headers import DEATHS_PROPERTY
from repot.brokers.in_hand import BrokerClient, Delivery, GiveBack
from repot.brokers.redis.claims import Claim
from repot.brokers.redis.clients import consumes
from repot.brokers.redis.in_flight import bindings
from repot.brokers.redis.lists import list_for, read_element
from repot.config.redis import PROBE_CLIENT
from repot.errors import FactUnknown
from repot.upstream.redis_deliveries import bound_queues, restored

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from repot.brokers.redis.journal import Ask

#: kombu's default, in seconds.
_VISIBILITY_TIMEOUT_S = 3600

#: Entries of the hash that one script looks at: it blocks Redis meanwhile.
_BATCH = 50

#: KEYS: the hash and its index. ARGV: a cursor, a count. Returns the next cursor, the time, and for each entry its tag,
#: its score or '' and its value without the body; '' for one that is too long to read.
_PAGE = """
local found, entries = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2]), {}
for index = 1, #found[2], 2 do
  local tag, value = found[2][index], found[2][index + 1]
  local rest = string.find(value, '", "content-encoding": ', 1, true)
  if rest and string.sub(value, 1, 11) == '[{"body": "' then value = '[{"body": "' .. string.sub(value, rest) end
  entries[#entries + 1] = {tag, redis.call('ZSCORE', KEYS[2], tag) or '', #value > 1048576 and '' or value}
end
local time = redis.call('TIME')
return {found[1], time[1] .. '.' .. string.format('%06d', time[2]), entries}
"""

#: KEYS: the hash, its index, a list. ARGV: a tag, its score, the digest of its value, the element to push, and the
#: lease of a claim or ''. Both halves of the entry are removed and the element is pushed, or nothing happens: then the
#: entry has changed (0), the key of the list holds something else (-1), or the claim's worker lives (-2). A number is
#: compared, not its text, which differs between Redis and Python. The score of a claim changes with each renewal.
_GIVE_BACK = """
local score, value = redis.call('ZSCORE', KEYS[2], ARGV[1]), redis.call('HGET', KEYS[1], ARGV[1])
if not score or not value then return 0 end
if redis.sha1hex(value) ~= ARGV[3] then return 0 end
if ARGV[5] == '' then
  if tonumber(score) ~= tonumber(ARGV[2]) then return 0 end
else
  local time = redis.call('TIME')
  if score + ARGV[5] > time[1] + time[2] / 1000000 then return -2 end
end
local kind = redis.call('TYPE', KEYS[3]).ok
if kind ~= 'list' and kind ~= 'none' then return -1 end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('RPUSH', KEYS[3], ARGV[4])
return 1
"""


class InHand:
    """The deliveries of one database. Errors of redis-py pass through `ask`."""

    def __init__(self, client: Any, keys: Mapping[str, Any], database: int, ask: Ask) -> None:  # noqa: ANN401
        """Use kombu's transport options `keys`."""
        self._client, self._keys, self._database, self._ask = client, keys, database, ask
        prefix = keys["global_keyprefix"]
        self._names = [f"{prefix}{keys['unacked_key']}", f"{prefix}{keys['unacked_index_key']}"]
        self._visibility_s = float(keys.get("visibility_timeout") or _VISIBILITY_TIMEOUT_S)

    def deliveries(self) -> Iterator[Delivery]:
        """Yield every entry of the hash once."""
        page, cursor, seen = self._client.register_script(_PAGE), "0", set[str]()
        tables: dict[str, Any] = {}
        while True:
            cursor, now, entries = self._ask(partial(page, keys=self._names, args=[cursor, _BATCH]))
            for tag, score, value in entries:
                if tag not in seen:
                    seen.add(tag)
                    yield self._delivery(tag, score, value, tables, float(now))
            if cursor == "0":
                return

    def clients(self) -> tuple[BrokerClient, ...]:
        """Return the connections to this database that consume, as kombu or by claims."""
        listed = self._ask(self._client.client_list)
        if any("cmd" not in one or "db" not in one for one in listed):
            message = "Redis does not say what its clients do"
            raise FactUnknown(message, hint="CLIENT LIST has to state cmd and db.")
        return tuple(
            BrokerClient(one["addr"], one.get("name", ""), float(one.get("age", 0)), float(one.get("idle", 0)))
            for one in listed
            if consumes(one, self._database) and not one.get("name", "").endswith(PROBE_CLIENT)
        )

    def give_back(self, delivery: Delivery) -> GiveBack:
        """Move a delivery to its queue's list, where workers read next, as kombu restores it.

        A claim's worker has died, and that is counted in the message.
        """
        (queue,) = delivery.queues
        value = self._ask(lambda: self._client.hget(self._names[0], delivery.tag))
        if value is None:
            return GiveBack.GONE
        claim = Claim.of(delivery.tag)
        try:
            element = restored(value, DEATHS_PROPERTY if claim else "")
        except ValueError:
            return GiveBack.UNREADABLE
        message, _ = read_element(element)
        digest = sha1(value.encode(errors="surrogateescape"), usedforsecurity=False).hexdigest()
        script = self._client.register_script(_GIVE_BACK)
        done = self._ask(
            lambda: script(
                keys=[*self._names, list_for(message, queue, self._keys)],
                args=[
                    delivery.tag,
                    repr(delivery.delivered_at),
                    digest,
                    element,
                    f"{claim.lease_s:g}" if claim else "",
                ],
            )
        )
        return {1: GiveBack.DONE, 0: GiveBack.GONE, -2: GiveBack.LIVES}.get(done, GiveBack.NO_QUEUE)

    def _delivery(self, tag: str, score: str, value: str, tables: dict[str, Any], now: float) -> Delivery:
        claim = Claim.of(tag)
        if not score:
            delivery = Delivery(tag, worker=claim.worker if claim else "")
        elif claim is None:
            delivery = Delivery(tag, delivered_at=float(score), again_at=float(score) + self._visibility_s)
        else:
            again_at = float(score) + claim.lease_s
            delivery = Delivery(
                tag,
                delivered_at=claim.claimed_at,
                again_at=again_at,
                worker=claim.worker,
                lives=again_at > now,
                ahead_s=time() - now,
            )
        try:
            payload, exchange, key = json.loads(value)
            headers, properties = payload["headers"], payload["properties"]
            id_ = headers.get("id") or properties.get("correlation_id") or ""
            task = headers.get("task") or ""
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return replace(delivery, problem=GiveBack.UNREADABLE.value)
        if exchange and exchange not in tables:
            tables[exchange] = self._ask(lambda: bindings(self._client, exchange, self._keys))
        queues = bound_queues(tables[exchange], str(key)) if exchange else (str(key),)
        return replace(delivery, task_id=str(id_), task=str(task), queues=queues)
