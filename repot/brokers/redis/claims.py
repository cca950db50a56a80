"""Claims: messages in hand whose tag says who took them, when, and for how long without a sign of life.

A claim is an entry of kombu's `unacked` and `unacked_index`, in kombu's form, so any other worker can restore it. What
kombu does not have is its tag: `repot/LEASE/TIME/OWNER-NUMBER/WORKER`, a new one for each delivery. So a late ACK of an
owner whose message was handed out again finds nothing to remove. The score in the index, by Redis' clock, is when the
claim was last renewed: a living owner renews it three times in a lease, from a thread, so neither kombu's sweep nor
`recover` touches it, however long its task runs. `recover` puts back a claim whose lease has run out, and counts that
in the message.

The exchange of an entry is empty, and its routing key is the queue that the message came from: it returns there, not to
all queues that its exchange and key lead to.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Any

import redis

from repot.brokers.headers import DEATHS_PROPERTY
from repot.brokers.redis.lists import list_for, read_element
from repot.logs import get_logger
from repot.renewal import Renewer
from repot.upstream.native_threads import make_lock
from repot.upstream.redis_deliveries import restored

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

log = get_logger(__name__)

_FAILED = (redis.RedisError, OSError)

_TAG = re.compile(
    r"repot/(?P<lease>[0-9]+(?:\.[0-9]+)?)/(?P<time>[0-9]+)/(?P<owner>[0-9a-f]+)-[0-9]+/(?P<worker>.*)", re.DOTALL
)

_NOW = """
local function now()
  local time = redis.call('TIME')
  return time[1] + time[2] / 1000000
end
"""

#: KEYS: the index, the hash. ARGV: tags. Renews the claims that still exist and returns the tags of the others.
_RENEW = f"""{_NOW}
-- a write that needs no memory, after which a full Redis refuses nothing
redis.call('HDEL', KEYS[2], '')
local at, gone = string.format('%.6f', now()), {{}}
for _, tag in ipairs(ARGV) do
  if redis.call('ZSCORE', KEYS[1], tag) then
    redis.call('ZADD', KEYS[1], at, tag)
  else
    gone[#gone + 1] = tag
  end
end
return gone
"""

#: KEYS: the index, the hash, the lock, the start of the scans. ARGV: the caller's lease, seconds until the next scan, a
#: limit, the seconds after which scans have ceased. Returns tag and value of claims that have run out; one caller looks
#: in that time. Where scans have ceased, maybe no owner could renew: Redis stood still, or failed over. Then each gets
#: the time of its lease first. So it does where the clock has jumped ahead, which ends the keys that say since when.
#: What a clock that went back has in its future counts as of now: else it would wait for that time to pass once more.
_LAPSED = f"""{_NOW}
redis.call('HDEL', KEYS[2], '')
local at, found = now(), {{}}
local written = string.format('%.6f', at)
if tonumber(redis.call('GET', KEYS[3]) or 0) > at then redis.call('DEL', KEYS[3]) end
if not redis.call('SET', KEYS[3], written, 'NX', 'PX', math.floor(ARGV[2] * 1000)) then return {{}} end
local since = redis.call('GET', KEYS[4]) or written
if tonumber(since) > at then since = written end
redis.call('SET', KEYS[4], since, 'PX', math.floor(ARGV[4] * 1000))
for _, tag in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. written, '+inf')) do
  if string.sub(tag, 1, 6) == 'repot/' then redis.call('ZADD', KEYS[1], written, tag) end
end
local entries = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', at - ARGV[1], 'WITHSCORES')
for index = 1, #entries, 2 do
  local lease = string.match(entries[index], '^repot/([0-9.]+)/')
  if lease and math.max(entries[index + 1], since) <= at - lease then
    found[#found + 1] = entries[index]
    found[#found + 1] = redis.call('HGET', KEYS[2], entries[index]) or ''
    if #found >= 2 * tonumber(ARGV[3]) then break end
  end
end
return found
"""

#: KEYS: the index, the hash, a list. ARGV: a tag, the lease that has to be over or '', the element, RPUSH or LPUSH,
#: whether a full Redis is to do it or ''. Returns 1, or 0 if the claim does not exist, or was renewed meanwhile.
_PUT_BACK = f"""{_NOW}
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not score or redis.call('HEXISTS', KEYS[2], ARGV[1]) == 0 then return 0 end
if ARGV[2] ~= '' and tonumber(score) > now() - ARGV[2] then return 0 end
-- a full Redis takes back what died or cannot be read, and not what a worker returns, which would take it again at once
if ARGV[5] ~= '' then redis.call('HDEL', KEYS[2], '') end
redis.call(ARGV[4], KEYS[3], ARGV[3])
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
return 1
"""

#: A function of scripts: gives the turn (`transport.py`) to the worker that has waited longest for it, which has that
#: long to begin the watch; a turn is not given twice meanwhile.
HAND_ON = """
local function hand_on(turn, watch)
  redis.call('SET', watch, '', 'PX', 3000)
  if redis.call('LLEN', turn) == 0 then
    redis.call('LPUSH', turn, '1')
    redis.call('EXPIRE', turn, 60)
  end
end
"""

#: Claims that one scan puts back, and tags that one call renews.
_BATCH = 500


@dataclass(frozen=True, slots=True)
class Claim:
    """What the tag of a claim says: times in seconds since 1970 by Redis' clock, the lease in seconds."""

    lease_s: float
    claimed_at: float
    owner: str
    worker: str

    @classmethod
    def of(cls, tag: str) -> Claim | None:
        """Read a tag; None if it is not a claim's."""
        match = _TAG.fullmatch(tag)
        if match is None:
            return None
        return cls(float(match["lease"]), int(match["time"]) / 1000, match["owner"], match["worker"])


def is_claim(tag: object) -> bool:
    """Return whether a delivery tag is a claim's."""
    return isinstance(tag, str) and tag.startswith("repot/")


class _Server:
    """The server that the claims are on, by connections of one's own: threads of gevent or eventlet share none."""

    def __init__(self, pool: Any, answers_within_s: float) -> None:  # noqa: ANN401 - redis-py's
        options = pool.connection_kwargs
        options["socket_timeout"] = min(options.get("socket_timeout") or answers_within_s, answers_within_s)
        self.client = redis.Redis(connection_pool=pool)
        self.renew, self.lapsed = self.client.register_script(_RENEW), self.client.register_script(_LAPSED)
        self.put_back = self.client.register_script(_PUT_BACK)


class Claims:
    """What one process has claimed on one Redis database, over all its connections; renewed in the background."""

    def __init__(self, make_pool: Callable[[], Any], keys: Mapping[str, Any], lease_s: float, worker: str) -> None:
        """Connect by pools of redis-py's that `make_pool` returns; `keys` are kombu's transport options."""
        self.keys, self.lease_s = keys, lease_s
        self.interval_s = min(lease_s, float(keys["visibility_timeout"])) / 3
        prefix = keys["global_keyprefix"]
        self.index, self.hash = f"{prefix}{keys['unacked_index_key']}", f"{prefix}{keys['unacked_key']}"
        self._unreadable, self._scan = f"{self.hash}_unreadable", f"{self.hash}_recovery"
        self._scans_since = f"{self._scan}:since"
        self.worker, self._owner, self._numbers = worker, os.urandom(6).hex(), count(1)
        self._connect(make_pool)
        self._at: object = None
        #: When each was last known to exist, by this process' clock.
        self._held: dict[str, float] = {}
        #: Those of them whose tasks have begun in a thread of this process.
        self._begun: set[str] = set()
        self._unsettled: dict[str, None] = {}
        self._changing = make_lock()
        self._renewer = Renewer()
        self._recovery, self._consumers = _Recovery(self), 0
        self._not_returned: set[str] = set()

    def _connect(self, make_pool: Callable[[], Any]) -> None:
        # an answer that does not come leaves time for another renewal, by a new connection
        self._server, self._background = (_Server(make_pool(), self.interval_s) for _ in range(2))

    def follow(self, server: object, make_pool: Callable[[], Any]) -> None:
        """Go on at another server of a failover list, which has the claims of the one before; `server` names it."""
        with self._changing:
            if self._at not in (None, server):
                self._connect(make_pool)
            self._at = server

    def consume(self) -> None:
        """Look for claims that have run out from now on, in the background: a worker may be busy with its task."""
        with self._changing:
            self._consumers += 1
            if self._consumers == 1:
                self._renewer.add(self._recovery)

    def cease(self) -> None:
        """Do so no more, if no other channel of this process consumes."""
        with self._changing:
            self._consumers -= 1
            if not self._consumers:
                self._renewer.remove(self._recovery)

    def next_tag(self) -> tuple[str, str]:
        """Return what stands before and after the time in the tag of the next claim."""
        return f"repot/{self.lease_s:g}/", f"/{self._owner}-{next(self._numbers)}/{self.worker}"

    def hold(self, tag: str) -> None:
        """Renew a claim from now on."""
        with self._changing:
            if not self._held:
                # within the lock: an ACK in another thread may remove the last one at this moment
                self._renewer.add(self)
            self._held[tag] = monotonic()

    def holds(self, tag: str) -> bool:
        """Return whether this process holds a claim, as far as it knows."""
        return tag in self._held

    def is_in_hand(self, tag: str) -> bool:
        """Return whether a message may still run here. From any thread.

        Without an answer of Redis since the lease a message counts as handed out again.
        """
        with self._changing:
            known_at = self._held.get(tag)
        if known_at is not None and monotonic() - known_at > self.lease_s and not self._is_still_held(tag):
            self._let_go(tag)
        return self.holds(tag)

    def begin(self, tag: str) -> bool:
        """Note that the task of a message begins, if the message is in hand; return whether it is. From any thread."""
        if not self.is_in_hand(tag):
            return False
        with self._changing:
            if tag in self._held:
                self._begun.add(tag)
            return tag in self._held

    def withdraw(self, tag: str) -> bool:
        """Let the task of a message not begin any more; return False if it has begun. From any thread."""
        with self._changing:
            if tag in self._begun:
                return False
            self._forget(tag)
        return True

    def still_holds(self, tag: str) -> bool:
        """Renew a claim at once; return whether it still exists. An owner that slept may have lost it."""
        return not self._server.renew(keys=[self.index, self.hash], args=[tag])

    def _is_still_held(self, tag: str) -> bool:
        try:
            return self.still_holds(tag)
        except _FAILED:
            return False

    def settle(self, tag: str) -> None:
        """Remove a message for good; if Redis does not answer, again with each renewal."""
        try:
            was_held = self._remove(self._server, tag)
        except _FAILED as error:
            log.warning("an ACK did not arrive, and is sent again: %s", error, extra={"action": "ack_repeated"})
            with self._changing:
                self._unsettled[tag] = None
            return
        self._let_go(tag)
        if not was_held:
            log.warning("an ACK came too late: the message was handed out again", extra={"action": "ack_fenced"})

    def give_back(self, tag: str, *, first: bool) -> bool:
        """Put a message back into its queue; return whether Redis answered.

        If it did not, the message returns when its lease has run out.
        """
        self._let_go(tag)
        try:
            value: Any = self._server.client.hget(self.hash, tag)
            if value is not None:
                self._restore(self._server, tag, _text(value), "RPUSH" if first else "LPUSH")
        except _FAILED as error:
            log.warning(
                "a message was not put back, which happens when its lease of %g s has run out: %s",
                self.lease_s,
                error,
                extra={"action": "give_back_failed"},
            )
            return False
        return True

    def leave(self, tags: Collection[str]) -> None:
        """Let go of messages, which return when their leases have run out."""
        for tag in tags:
            self._let_go(tag)
        if tags:
            log.warning("%d more messages were not put back", len(tags), extra={"action": "give_back_failed"})

    def set_aside(self, tag: str, problem: Exception) -> None:
        """Move a message that cannot be read to a list of its own, and say where it is."""
        self._set_aside(self._server, tag, problem)

    def _set_aside(self, server: _Server, tag: str, problem: Exception) -> None:
        self._let_go(tag)
        value: Any = server.client.hget(self.hash, tag)
        if value is not None:
            self._put(server, tag, self._unreadable, _text(value), "LPUSH", when_full=True)
            log.error(
                "a message cannot be read (%s), and was moved to the list %r: LRANGE shows it",
                problem,
                self._unreadable,
                extra={"action": "message_set_aside"},
            )

    def recover(self, every_s: float) -> int:
        """Put back claims whose lease has run out; return how many. One process looks in each `every_s` seconds.

        It takes half of that at most: the renewals of what this process holds wait for it. The next look has the rest.
        """
        keys = [self.index, self.hash, self._scan, self._scans_since]
        # longer than the pause between two scans, and half a lease: an owner renews within the other half
        ceased_s = 3 * every_s
        found = self._background.lapsed(keys=keys, args=[self.lease_s, 0.9 * every_s, _BATCH, ceased_s])
        with self._changing:
            # this process lives: its next renewal comes late
            own = {*self._held, *self._unsettled}
        done, until = 0, monotonic() + every_s / 2
        for tag, value in zip(map(_text, found[::2]), map(_text, found[1::2]), strict=True):
            done += 0 if tag in own else self._recover(tag, value)
            if monotonic() > until:
                break
        return done

    def hand_on(self, turn: str) -> None:
        """Let the next worker wait for messages in this one's place; without an answer it does so in seconds."""
        with suppress(*_FAILED):
            self._server.client.eval(f"{HAND_ON} hand_on(KEYS[1], KEYS[2])", 2, turn, f"{turn}:watch")

    def renew(self) -> bool:
        """Renew all claims, and settle what could not be settled; return whether there are any."""
        with self._changing:
            held, unsettled = list(self._held), list(self._unsettled)
        for tag in unsettled:
            self._remove(self._background, tag)
            self._let_go(tag)
        held = [tag for tag in held if tag not in unsettled]
        for start in range(0, len(held), _BATCH):
            asked_at, batch = monotonic(), held[start : start + _BATCH]
            gone = set(map(_text, self._background.renew(keys=[self.index, self.hash], args=batch)))
            for tag in gone:
                self._lost(tag)
            with self._changing:
                self._held.update((tag, asked_at) for tag in batch if tag in self._held and tag not in gone)
        with self._changing:
            return bool(self._held)

    def _remove(self, server: _Server, tag: str) -> bool:
        # in kombu's order
        try:
            with server.client.pipeline(transaction=True) as pipeline:
                pipeline.zrem(self.index, tag)
                pipeline.hdel(self.hash, tag)
                return bool(pipeline.execute()[0])
        except (redis.exceptions.OutOfMemoryError, redis.exceptions.ExecAbortError):
            # a full Redis takes no transactions; without its message the rest of an entry is removed by any scan
            removed = bool(server.client.hdel(self.hash, tag))
            server.client.zrem(self.index, tag)
            return removed

    def _lost(self, tag: str) -> None:
        """Note that a claim does not exist any more, unless it was settled while it was renewed."""
        with self._changing:
            was_held = tag in self._held
        if was_held:
            self._let_go(tag)
            log.warning("a message in hand was handed out again: its lease had run out", extra={"action": "claim_lost"})

    def _let_go(self, tag: str) -> None:
        with self._changing:
            self._forget(tag)

    def _forget(self, tag: str) -> None:
        """Hold a claim no more; the caller has the lock."""
        self._held.pop(tag, None)
        self._unsettled.pop(tag, None)
        self._begun.discard(tag)
        if not self._held:
            self._renewer.remove(self)

    def _recover(self, tag: str, value: str) -> int:
        claim = Claim.of(tag)
        if claim is None or not value:
            return 0
        try:
            done = self._restore_or_set_aside(tag, value, claim)
        except redis.ResponseError as error:
            # of this one alone, as where the key of its queue has another type: the others are not left for it
            if tag not in self._not_returned:
                self._not_returned.add(tag)
                log.warning(
                    "a message that worker %s held is not handed out again: %s",
                    claim.worker,
                    error,
                    extra={"action": "claim_not_recovered"},
                )
            return 0
        if done:
            log.warning(
                "worker %s has given no sign of life for %g s: a message that it held is handed out again",
                claim.worker,
                claim.lease_s,
                extra={"action": "claim_recovered"},
            )
        return done

    def _restore_or_set_aside(self, tag: str, value: str, lapsed: Claim) -> int:
        try:
            return self._restore(self._background, tag, value, "RPUSH", lapsed)
        except ValueError as error:
            self._set_aside(self._background, tag, error)
            return 0

    def _restore(self, server: _Server, tag: str, value: str, push: str, lapsed: Claim | None = None) -> int:
        _, _, queue = json.loads(value)
        try:
            element = restored(value, DEATHS_PROPERTY if lapsed else "")
        except ValueError:
            # JSON, and not as kombu writes it: another program's, without a place for the mark
            element = value[1 : -len(tails_of([queue])[0])]
        name = list_for(read_element(element)[0], queue, self.keys)
        lease = f"{lapsed.lease_s:g}" if lapsed else ""
        return self._put(server, tag, name, element, push, lease=lease, when_full=lapsed is not None)

    def _put(
        self, server: _Server, tag: str, name: str, element: str, push: str, *, when_full: bool, lease: str = ""
    ) -> int:
        stored = element.encode(errors="surrogateescape")
        arguments: list[Any] = [tag, lease, stored, push, "when full" if when_full else ""]
        return int(server.put_back(keys=[self.index, self.hash, name], args=arguments))


class _Recovery:
    """Recovers claims in the background; one scan in each sixth of a lease, among all workers."""

    def __init__(self, claims: Claims) -> None:
        """Recover what others claimed where `claims` are."""
        self._claims, self.interval_s = claims, claims.interval_s / 2

    def renew(self) -> bool:
        """Look once, and go on."""
        try:
            self._claims.recover(self.interval_s)
        except _FAILED as error:
            # Redis is away, or the user may run no scripts: messages return after the visibility timeout
            log.debug("claims are not recovered: %s", error)
        return True


def _text(value: bytes) -> str:
    return value.decode(errors="surrogateescape")


class ClaimsOfProcess:
    """The claims of this process, one object for each server and database; a forked child has none."""

    def __init__(self) -> None:
        """Have none."""
        self._pid, self._found = os.getpid(), dict[object, Claims]()

    def at(self, place: object, make: Callable[[], Claims]) -> Claims:
        """Return the claims at a place."""
        if os.getpid() != self._pid:
            self._pid, self._found = os.getpid(), {}
        if place not in self._found:
            self._found[place] = make()
        return self._found[place]


def tails_of(queues: Sequence[str]) -> list[str]:
    """Return what follows a message of each queue in its entry of the hash: an empty exchange and the queue."""
    return [f', "", {json.dumps(queue)}]' for queue in queues]
