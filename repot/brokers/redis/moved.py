"""Reserve what a move brought to a queue on Redis, and leave the other messages where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repot.brokers.headers import MOVE_HEADER
from repot.brokers.moving import WINDOW_BYTES
from repot.brokers.redis.lists import not_a_list
from repot.brokers.redis.reader import RedisReader
from repot.brokers.redis.reservation import PRELUDE, RedisReservation
from repot.errors import FactUnknown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from repot.brokers.headers import MovedBy
    from repot.brokers.redis.journal import Ask
    from repot.brokers.reservation import Reservation

#: Elements that one call of the script looks at: it blocks Redis meanwhile.
_CHUNK = 500

#: ARGV: id, limit, lease, move, origin, the list's number among KEYS, elements at its old end to pass over, elements to
#: look at. Returns the elements that it reserved, oldest first, where to go on, and how many it looked at; or the name
#: of a key that is not a list. An element is removed by its place: a search would read the list once for each.
_TAKE_MOVED = f"""{PRELUDE}
local function is_moved(element)
  if not string.find(element, ARGV[4] .. ':', 1, true) then return false end
  local readable, found = pcall(cjson.decode, element)
  local headers = readable and type(found) == 'table' and found.headers
  local stamp = type(headers) == 'table' and headers['{MOVE_HEADER}']
  if type(stamp) ~= 'string' or string.sub(stamp, 1, #ARGV[4] + 1) ~= ARGV[4] .. ':' then return false end
  local number, origin = string.match(stamp, '^(%d+)(.*)$', #ARGV[4] + 2)
  return number and origin == (ARGV[5] == '' and '' or ':' .. ARGV[5])
end
local wrong = wrong_key()
if wrong then return wrong end
local key, passed, removed = KEYS[tonumber(ARGV[6])], tonumber(ARGV[7]), 'repot-removed:' .. ARGV[1]
local elements = redis.call('LRANGE', key, -(passed + tonumber(ARGV[8])), -(passed + 1))
local held_list, taken, looked, bytes = held(ARGV[1], tonumber(ARGV[6])), {{}}, 0, 0
-- Redis undoes nothing of a script that fails: a right that is missing is met before anything has changed
redis.call('ZADD', KEYS[1], now() + tonumber(ARGV[3]), ARGV[1])
redis.call('LREM', held_list, 1, removed)
if #elements > 0 then redis.call('LSET', key, -(passed + 1), elements[#elements]) end
for place = #elements, 1, -1 do
  if #taken == tonumber(ARGV[2]) or bytes >= {WINDOW_BYTES} then break end
  looked = looked + 1
  if is_moved(elements[place]) then
    redis.call('LPUSH', held_list, elements[place])
    redis.call('LSET', key, -(passed + looked), removed)
    taken[#taken + 1] = elements[place]
    bytes = bytes + #elements[place]
  end
end
if #taken > 0 then
  redis.call('LREM', key, -#taken, removed)
else
  redis.call('ZREM', KEYS[1], ARGV[1])
end
return {{taken, passed + looked - #taken, looked}}
"""


class MovedReader(RedisReader):
    """Goes through the queue's lists from the old end, again until it has found nothing more.

    Workers that take messages meanwhile shift the others, so one pass may pass over some.
    """

    def __init__(
        self,
        client: Any,  # noqa: ANN401 - redis.Redis
        queue: str,
        keys: Mapping[str, Any],
        lease_s: float,
        ask: Ask,
        moved: MovedBy,
    ) -> None:
        """Read with `client` what `moved` says."""
        super().__init__(client, queue, keys, lease_s, ask)
        self._moved = moved
        self._script = client.register_script(_TAKE_MOVED)
        self._begin()

    def _begin(self) -> None:
        # the first key is the index of reservations
        self._list, self._passed, self._has_found = 1, 0, False

    def take(self, limit: int, name: str) -> Reservation:
        """Reserve some of the messages, at most `limit`; none if a whole pass has found none."""
        while self._list < len(self._names):
            taken, self._passed, looked = self._look(limit, name)
            if taken:
                self._has_found = True
                return self._reserved(name, [(self._list + 1, one) for one in taken])
            if not looked:
                self._list, self._passed = self._list + 1, 0
                if self._list == len(self._names) and self._has_found:
                    self._begin()
        self._begin()
        return self._reserved(name, [])

    def _look(self, limit: int, name: str) -> Any:  # noqa: ANN401 - what the script returns
        what = [name, limit, self._lease_s, self._moved.move, self._moved.origin]
        words = [*what, self._list + 1, self._passed, _CHUNK]
        found = self._ask(lambda: self._script(keys=self._names, args=words))
        if isinstance(found, str):
            raise FactUnknown(not_a_list(found), hint="Is the name right? Another program uses this key.")
        return found

    def _reserved(self, name: str, elements: list[tuple[int, str]]) -> RedisReservation:
        return RedisReservation(self._client, self._names, name, elements, self._lease_s, self._ask)
