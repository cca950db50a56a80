"""Find the task queues in a database by the traces that kombu leaves: bindings, lists, the hash of what workers hold.

A list of another program is not a queue: the oldest or the newest element has to be a task in kombu's envelope, or a
binding has to name the list. An envelope names its routing key, so a list shows by its own name under which prefix,
separator and step of priority it was written.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import NoPermissionError, ResponseError

from repot.brokers.facts import Unknown
from repot.brokers.held import Beside, Held, may_hold_tasks
from repot.brokers.port import Depth
from repot.errors import AccessRefused
from repot.upstream.redis_deliveries import bindings_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from repot.brokers.in_hand import Delivery
    from repot.brokers.redis.journal import Ask

#: A database with more keys is not searched to its end.
SEARCHED_KEYS = 200_000
#: Keys that one script looks at: it blocks Redis meanwhile.
_PAGE = 500

_BINDINGS, _RESERVED = bindings_key(""), "reserved:"
#: kombu's default: what a deployment with other options in use may have been before.
_DEFAULT_SEPARATOR = "\x06\x16"
_OF_EVENTS = ("celeryev",)
_STEP = re.compile(r"(?P<sep>(?:.{0,7})\D)(?P<step>[1-9][0-9]?)", re.DOTALL)

#: KEYS: any keys. ARGV: the beginning of a binding's key, the end of the name of the hash of what workers hold. Returns
#: for each key of kombu's: its name, its type, its length, and the members of a set, or both ends of a list, without
#: the bodies; of a hash the beginning of a value.
_LOOK = """
local function short(element)
  local rest = string.find(element, '", "content-encoding": ', 1, true)
  if rest and string.sub(element, 1, 10) == '{"body": "' then element = '{"body": "' .. string.sub(element, rest) end
  return #element > 65536 and '' or element
end
local found = {}
for _, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  if kind == 'list' then
    local oldest, newest = redis.call('LINDEX', key, -1), redis.call('LINDEX', key, 0)
    found[#found + 1] = {key, kind, redis.call('LLEN', key), {short(oldest), short(newest)}}
  elseif kind == 'set' and string.find(key, ARGV[1], 1, true) then
    found[#found + 1] = {key, kind, 0, redis.call('SMEMBERS', key)}
  elseif kind == 'hash' and string.sub(key, -#ARGV[2]) == ARGV[2] then
    local entries = redis.call('HSCAN', key, '0', 'COUNT', 1)[2]
    found[#found + 1] = {key, kind, redis.call('HLEN', key), {string.sub(entries[2] or '', 1, 10)}}
  end
end
return found
"""
#: The beginning of a value in the hash of what workers hold.
_DELIVERY = '[{"body": '


class _Place(NamedTuple):
    """What the name of a list says."""

    prefix: str
    queue: str
    sep: str = ""
    step: int = 0


@dataclass(slots=True)
class _Traces:
    """Kombu's keys of one database."""

    #: Prefix -> the queues that bindings name.
    bound: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    #: List -> its length, and what its elements say: the routing key of a task, None for anything else.
    lists: dict[str, tuple[int, list[str | None]]] = field(default_factory=dict)
    #: Prefix -> what workers hold.
    hashes: dict[str, int] = field(default_factory=dict)


class HeldQueues:
    """Looks through one database. Errors of redis-py pass through `ask`."""

    def __init__(self, client: Any, keys: Mapping[str, Any], user: str, ask: Ask) -> None:  # noqa: ANN401 - redis.Redis
        """Use kombu's transport options `keys`; `user` is named where a right is missing."""
        self._client, self._keys, self._user, self._ask = client, keys, user or "default", ask
        self._prefix, self._sep = keys["global_keyprefix"], keys["sep"]
        self._unknown: list[Unknown] = []

    def find(self, deliveries: Callable[[], Iterable[Delivery]]) -> Held:
        """Return the queues; `deliveries` are what workers hold under the options in use.

        Raises:
            BrokerUnreachable: Redis did not answer.
        """
        self._unknown = []
        traces = self._traces()
        ready: Counter[str] = Counter(dict.fromkeys(traces.bound[self._prefix], 0))
        in_hand: Counter[str] = Counter()
        beside: dict[_Place, int] = {}
        own = {(self._prefix, self._sep if step else "", step) for step in (0, *self._keys["priority_steps"])}
        for name, (length, routes) in traces.lists.items():
            read, is_reserved = self._reserved_from(name)
            place = self._place(read, routes, traces)
            if place is None:
                continue
            if (place.prefix, place.sep, place.step) in own:
                (in_hand if is_reserved else ready)[place.queue] += length
            elif may_hold_tasks(place.queue):
                beside[place] = beside.get(place, 0) + length
        in_hand.update(self._in_hand(deliveries))
        found = {
            queue: Depth(ready[queue], in_hand[queue]) for queue in sorted({*ready, *in_hand}) if may_hold_tasks(queue)
        }
        return Held(found, tuple(self._beside(beside, traces)), tuple(self._unknown))

    def _reserved_from(self, name: str) -> tuple[str, bool]:
        """Return the list from which a mover has reserved a list's messages; the name itself if that is not so."""
        for sep in (self._sep, _DEFAULT_SEPARATOR):
            queue, found, _ = name.partition(f"{sep}{_RESERVED}")
            if found:
                return queue, True
        return name, False

    def _traces(self) -> _Traces:
        traces, script = _Traces(), self._client.register_script(_LOOK)
        unread: set[str] = set()
        for names in self._pages():
            try:
                looked = self._ask(partial(self._look, script, names))
            except _Refused as refused:
                unread.add(str(refused))
                continue
            for name, kind, length, said in looked:
                if kind == "set":
                    self._add_binding(traces, name, said)
                elif kind == "hash":
                    if said[0] == _DELIVERY:
                        traces.hashes[name.removesuffix(self._keys["unacked_key"])] = length
                else:
                    traces.lists[name] = (length, [_route(one) for one in said])
        self._unknown += [
            Unknown(
                f"not every key of the database may be read: {why}",
                f"ACL SETUSER {self._user} ~* +scan +type +llen +lindex +smembers +hlen +hscan would allow it.",
            )
            for why in sorted(unread)
        ]
        return traces

    def _look(self, script: Any, names: list[str]) -> Any:  # noqa: ANN401 - a script of redis-py
        try:
            return script(keys=names, args=[_BINDINGS, self._keys["unacked_key"]])
        except ResponseError as error:
            raise _Refused.of(error) from error

    def _pages(self) -> Iterator[list[str]]:
        """Yield the names of all keys, each once."""
        cursor, seen = 0, set[str]()
        while True:
            try:
                cursor, names = self._ask(partial(self._scan, cursor))
            except _Refused as refused:
                self._unknown.append(Unknown(f"SCAN is refused: {refused}", f"ACL SETUSER {self._user} +scan"))
                return
            new = [one for one in dict.fromkeys(names) if one not in seen]
            seen.update(new)
            if new:
                yield new
            if cursor == 0:
                return
            if len(seen) > SEARCHED_KEYS:
                self._unknown.append(Unknown(f"the database has more than {SEARCHED_KEYS} keys: the rest is unread"))
                return

    def _scan(self, cursor: int) -> Any:  # noqa: ANN401 - redis-py's answer
        try:
            return self._client.scan(cursor, count=_PAGE)
        except ResponseError as error:
            raise _Refused.of(error) from error

    def _add_binding(self, traces: _Traces, name: str, members: Iterable[str]) -> None:
        prefix, _, exchange = name.partition(_BINDINGS)
        if exchange.endswith(".pidbox") or exchange in _OF_EVENTS:
            return
        traces.bound[prefix].update(
            queue for one in members if (queue := self._queue_in(one)) and may_hold_tasks(queue)
        )

    def _queue_in(self, member: str) -> str:
        """Return the queue of a binding (routing key, pattern, queue); '' if its separator is not known."""
        for sep in (self._sep, _DEFAULT_SEPARATOR):
            parts = member.split(sep)
            if len(parts) == 3:  # noqa: PLR2004 - kombu's three
                return parts[2]
        # another separator: of a queue that is bound by its own name, `NAME SEP SEP NAME`
        for length in range(len(member) // 2 - 1, 0, -1):
            name, middle = member[:length], member[length:-length]
            if member.endswith(name) and len(middle) % 2 == 0 and middle[: len(middle) // 2] * 2 == middle:
                return name
        return ""

    def _place(self, name: str, routes: list[str | None], traces: _Traces) -> _Place | None:
        """Return where a list belongs; None if it is not kombu's."""
        bound = traces.bound[self._prefix]
        own = name.removeprefix(self._prefix) if name.startswith(self._prefix) else None
        if own in bound:
            return _Place(self._prefix, own)
        stepped = self._stepped(own or "")
        if stepped is not None and stepped.queue in bound:
            return stepped
        routed = [one for one in routes if one is not None]
        if not routed:
            return None
        if own in routed:
            return _Place(self._prefix, own)
        for prefix, queue in self._candidates(name, routed, traces):
            if found := _under(name, prefix, queue):
                return found
        return stepped or (_Place("", name) if own is None else _Place(self._prefix, own))

    def _stepped(self, own: str) -> _Place | None:
        """Return the queue and the step of a list, by the options in use."""
        for step in self._keys["priority_steps"]:
            queue = own.removesuffix(f"{self._sep}{step}")
            if step and queue and queue != own:
                return _Place(self._prefix, queue, self._sep, step)
        return None

    def _candidates(self, name: str, routed: Iterable[str], traces: _Traces) -> Iterator[tuple[str, str]]:
        """Yield prefixes and queues that a list may have: of the bindings, the longest first, and by routing keys."""
        bound = [(prefix, queue) for prefix, queues in traces.bound.items() for queue in queues]
        yield from sorted(bound, key=lambda one: len(one[0]) + len(one[1]), reverse=True)
        yield from ((name[: name.rfind(route)], route) for route in routed if route and route in name)

    def _in_hand(self, deliveries: Callable[[], Iterable[Delivery]]) -> Counter[str]:
        found: Counter[str] = Counter()
        lost = 0
        try:
            for one in deliveries():
                found.update(one.queues)
                lost += not one.queues
        except AccessRefused as refused:
            self._unknown.append(Unknown(f"what workers hold is unknown: {refused.message}", refused.hint))
        if lost:
            self._unknown.append(Unknown(f"of {lost} messages that workers hold, no binding names the queue"))
        return found

    def _beside(self, places: Mapping[_Place, int], traces: _Traces) -> Iterator[Beside]:
        for prefix in sorted({one.prefix for one in places if one.prefix != self._prefix} | {*traces.hashes}):
            if prefix == self._prefix:
                continue
            there = {place: count for place, count in places.items() if place.prefix == prefix}
            held = traces.hashes.get(prefix, 0)
            waiting = sum(there.values())
            options = {"global_keyprefix": prefix} | self._options(there)
            queues = frozenset(one.queue for one in there) | (traces.bound.get(prefix, set()) if held else set())
            where = f"under the prefix {prefix!r}" if prefix else "without a prefix"
            if waiting or held:
                text = f"{waiting} messages wait and {held} are in the hands of workers {where}"
                yield Beside(text if held else f"{waiting} messages wait {where}", queues, options)
        own = {place: count for place, count in places.items() if place.prefix == self._prefix}
        if own:
            steps = ", ".join(map(str, sorted({one.step for one in own})))
            seps = {one.sep for one in own} - {self._sep}
            where = f"with the separator {min(seps)!r}" if seps else f"of the steps of priority {steps}"
            queues = frozenset(one.queue for one in own)
            yield Beside(f"{sum(own.values())} messages wait in lists {where}", queues, self._options(own))

    def _options(self, places: Iterable[_Place]) -> dict[str, Any]:
        """Return the separator and the steps that reach these lists, where they are not those in use."""
        stepped = [one for one in places if one.step]
        seps, steps = {one.sep for one in stepped}, {one.step for one in stepped}
        options: dict[str, Any] = {}
        if seps and seps != {self._sep}:
            options["sep"] = min(seps - {self._sep})
        if steps - set(self._keys["priority_steps"]):
            options["priority_steps"] = sorted({0, *steps, *self._keys["priority_steps"]})
        return options


class _Refused(Exception):
    """Redis refuses a command to this user."""

    @classmethod
    def of(cls, error: ResponseError) -> Exception:
        """Return this for a right that is missing; other errors stay as they are."""
        is_refusal = isinstance(error, NoPermissionError) or "script" in str(error) or "unknown command" in str(error)
        return cls(str(error).partition(" on @")[0]) if is_refusal else error


def _under(name: str, prefix: str, queue: str) -> _Place | None:
    """Return where a list belongs, if it is one of a queue under a prefix."""
    if not name.startswith(f"{prefix}{queue}"):
        return None
    rest = name[len(prefix) + len(queue) :]
    if not rest:
        return _Place(prefix, queue)
    match = _STEP.fullmatch(rest)
    return _Place(prefix, queue, match["sep"], int(match["step"])) if match else None


def _route(element: str) -> str | None:
    """Return the routing key of an element that is a task; None for anything else.

    Protocol 2 names the task in the headers. Protocol 1 does so in the body, which may be pickled; Celery states where
    the result goes, which neither results nor replies of workers do.
    """
    try:
        payload = json.loads(element)
        headers, properties = payload.get("headers") or {}, payload["properties"]
        if not (headers.get("task") or properties.get("reply_to")):
            return None
        return str((properties.get("delivery_info") or {}).get("routing_key") or "")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
