"""Reserve messages of kombu's lists on Redis.

A script moves them to lists of the reservation's own, one for each priority, in one step: no command stands between
"in the queue" and "reserved". An index, a sorted set for each queue, names its reservations with the instants at which
they end, by the server's clock. The keys begin as those of the queue's priorities do, so that the same ACL covers them:
`{queue}{sep}reserved` is the index, `{queue}{sep}reserved:{id}:{number}` the list of one reservation and priority.

A taker that is killed leaves its reservation behind. The next `take` of the queue puts it back once its lease has
ended. Celery's workers know nothing of reservations; `depth` counts them as unacknowledged.

kombu's own hash of unacknowledged messages is not used: any worker's restore scan would give a reserved message out
again after the worker's own visibility timeout, and an element that is not JSON would end every scan with an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repot.brokers.moving import WINDOW_BYTES
from repot.brokers.redis.journal import STEP, step_text
from repot.brokers.redis.lists import lists_of, not_a_list, read_element
from repot.brokers.reservation import Reservation, TakenMessage
from repot.errors import FactUnknown, LeaseLost, ReservationLost

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from repot.brokers.journal import JournalStep
    from repot.brokers.redis.journal import Ask

#: KEYS: the index, and the queue's lists. What is pushed back needs no memory, but Redis at `maxmemory` refuses RPUSH
#: unless the script has written before: LPOP, which it never refuses, comes first.
PRELUDE = """
local function held(id, index) return KEYS[1] .. ':' .. id .. ':' .. (index - 2) end
local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1000000
end
local function put_back(id)
  local count = 0
  for index = 2, #KEYS do
    for _ = 1, redis.call('LLEN', held(id, index)) do
      local element = redis.call('LPOP', held(id, index))
      redis.call('RPUSH', KEYS[index], element)
      count = count + 1
    end
  end
  redis.call('ZREM', KEYS[1], id)
  return count
end
local function wrong_key()
  for index = 2, #KEYS do
    local kind = redis.call('TYPE', KEYS[index]).ok
    if kind ~= 'list' and kind ~= 'none' then return KEYS[index] end
  end
end
"""

#: ARGV: id, limit, lease, and after how many bytes nothing more is taken. Returns the elements of each list, oldest
#: first; or the name of a key that is not a list.
_TAKE = f"""{PRELUDE}
local wrong = wrong_key()
if wrong then return wrong end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now())) do put_back(id) end
-- one of this name whose taker has heard no answer
if redis.call('ZSCORE', KEYS[1], ARGV[1]) then put_back(ARGV[1]) end
redis.call('ZADD', KEYS[1], now() + tonumber(ARGV[3]), ARGV[1])
local room, bytes, taken = tonumber(ARGV[2]), tonumber(ARGV[4]), {{}}
for index = 2, #KEYS do
  local elements = {{}}
  while room > 0 and bytes > 0 do
    local element = redis.call('RPOPLPUSH', KEYS[index], held(ARGV[1], index))
    if not element then break end
    elements[#elements + 1] = element
    room, bytes = room - 1, bytes - #element
  end
  taken[index - 1] = elements
end
if room == tonumber(ARGV[2]) then redis.call('ZREM', KEYS[1], ARGV[1]) end
return taken
"""

#: ARGV: id, lease, `all` or `some`, and then pairs of a list's number and an element. Returns 0 if there is no such
#: reservation.
_COMMIT = f"""{PRELUDE}
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
if ARGV[3] == 'all' then
  for index = 2, #KEYS do redis.call('DEL', held(ARGV[1], index)) end
  redis.call('ZREM', KEYS[1], ARGV[1])
  return 1
end
for place = 4, #ARGV, 2 do redis.call('LREM', held(ARGV[1], tonumber(ARGV[place])), -1, ARGV[place + 1]) end
redis.call('ZADD', KEYS[1], now() + tonumber(ARGV[2]), ARGV[1])
return 1
"""

#: ARGV: id, a step of a journal, `all` or `some`, and then pairs as for `_COMMIT`. Removes these, puts the others back
#: and applies the step. Returns 0 if there is no such reservation, -1 if the step's token is not the journal's.
_SETTLE = f"""{PRELUDE}{STEP}
local journal = cjson.decode(ARGV[2])
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
if fenced(journal) then return -1 end
if ARGV[3] == 'all' then
  for index = 2, #KEYS do redis.call('DEL', held(ARGV[1], index)) end
else
  local wrong = wrong_key()
  if wrong then return wrong end
  for place = 4, #ARGV, 2 do redis.call('LREM', held(ARGV[1], tonumber(ARGV[place])), -1, ARGV[place + 1]) end
end
put_back(ARGV[1])
apply(journal)
return 1
"""

#: ARGV: id, new id, lease. Returns the elements of each list, oldest first; or 0 if there is no such reservation.
_ADOPT = f"""{PRELUDE}
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[1], now() + tonumber(ARGV[3]), ARGV[2])
local taken = {{}}
for index = 2, #KEYS do
  local elements = redis.call('LRANGE', held(ARGV[1], index), 0, -1)
  taken[index - 1] = {{}}
  for place = 1, #elements do taken[index - 1][place] = elements[#elements + 1 - place] end
  if #elements > 0 then redis.call('RENAME', held(ARGV[1], index), held(ARGV[2], index)) end
end
return taken
"""

#: ARGV: id. Returns how many messages went back, or the name of a key that is not a list.
_PUT_BACK = f"""{PRELUDE}
local wrong = wrong_key()
if wrong then return wrong end
return put_back(ARGV[1])
"""

#: Counts the messages of all reservations of a queue.
COUNT = f"""{PRELUDE}
local count = 0
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  for index = 2, #KEYS do count = count + redis.call('LLEN', held(id, index)) end
end
return count
"""


def keys_of(queue: str, keys: Mapping[str, Any]) -> list[str]:
    """Return the index of a queue's reservations and the queue's lists; `keys` are kombu's transport options."""
    return [f"{keys['global_keyprefix']}{queue}{keys['sep']}reserved", *lists_of(queue, keys)]


def take(
    client: Any,  # noqa: ANN401 - redis.Redis
    names: list[str],
    name: str,
    limit: int,
    lease_s: float,
    ask: Ask,
) -> RedisReservation:
    """Reserve up to `limit` messages of about `WINDOW_BYTES` under a name; `names` are those of `keys_of`.

    Raises:
        FactUnknown: a key of the queue is not a list.
        BrokerUnreachable: Redis did not answer.
    """
    words = [name, limit, lease_s, WINDOW_BYTES]
    taken: Any = ask(lambda: client.register_script(_TAKE)(keys=names, args=words))
    if isinstance(taken, str):
        raise FactUnknown(not_a_list(taken), hint="Is the name right? Another program uses this key.")
    return RedisReservation(client, names, name, _numbered(taken), lease_s, ask)


def adopt(
    client: Any,  # noqa: ANN401 - redis.Redis
    names: list[str],
    name: str,
    new_name: str,
    lease_s: float,
    ask: Ask,
) -> RedisReservation:
    """Take over a reservation under a new name; `names` are those of `keys_of`.

    Raises:
        ReservationLost: there is no such reservation.
        BrokerUnreachable: Redis did not answer.
    """
    found: Any = ask(lambda: client.register_script(_ADOPT)(keys=names, args=[name, new_name, lease_s]))
    if found == 0:
        raise ReservationLost.of(0)
    return RedisReservation(client, names, new_name, _numbered(found), lease_s, ask)


def _numbered(found: Iterable[list[str]]) -> list[tuple[int, str]]:
    """Return each element with the number of its list."""
    return [(number, element) for number, elements in enumerate(found, start=2) for element in elements]


class RedisReservation(Reservation):
    """Messages in lists of their own."""

    def __init__(
        self,
        client: Any,  # noqa: ANN401 - redis.Redis
        names: list[str],
        reservation_id: str,
        elements: Iterable[tuple[int, str]],
        lease_s: float,
        ask: Ask,
    ) -> None:
        """Hold `elements`, each with the number of its list among `names`."""
        self._elements = {str(number): one for number, one in enumerate(elements)}
        super().__init__(TakenMessage(name, *read_element(one)) for name, (_, one) in self._elements.items())
        self._client, self._names, self._id, self._lease_s, self._ask = client, names, reservation_id, lease_s, ask

    def settle(self, ids: Iterable[str], step: JournalStep) -> None:
        """Remove these, put the others back, and apply a step of a journal, in one script."""
        words = self._words(list(ids))
        script = self._client.register_script(_SETTLE)
        done = self._ask(lambda: script(keys=self._names, args=[self._id, step_text(step), *words]))
        if isinstance(done, str):
            raise FactUnknown(not_a_list(done), hint="Rename that key; the messages come back when the lease ends.")
        if not done:
            raise ReservationLost.of(len(self._open))
        if done < 0:
            raise LeaseLost.of_move(step.key)
        self._has_ended = True
        self._open.clear()

    def _words(self, ids: list[str]) -> list[object]:
        if len(ids) == len(self._open):
            return ["all"]
        return ["some", *(word for one in ids for word in self._elements[one])]

    def _commit(self, ids: list[str]) -> None:
        whole = len(ids) == len(self._open)
        words = self._words(ids)
        script = self._client.register_script(_COMMIT)
        if not self._ask(lambda: script(keys=self._names, args=[self._id, self._lease_s, *words])):
            raise ReservationLost.of(len(ids))
        self._has_ended = self._has_ended or whole

    def _give_back(self) -> None:
        if not self._open:
            return
        script = self._client.register_script(_PUT_BACK)
        put = self._ask(lambda: script(keys=self._names, args=[self._id]))
        if isinstance(put, str):
            raise FactUnknown(not_a_list(put), hint="Rename that key; the messages come back when the lease ends.")
