"""The transport that repot gives kombu for Redis: a worker takes a message and records it as in hand in one step.

One script pops the oldest message of the first list that has one and writes its claim (`claims.py`); nothing that dies
on either side of it loses the message. A script cannot wait, so idle workers take turns:

- All of those that read the same queues wait in BRPOP on one list, the turn, that holds one element.
- The one that gets it asks Redis to tell it of the next message (CLIENT TRACKING), and has the watch.
- When it takes a message it puts the turn back, in the same script, and the worker that has waited longest gets it.

So a message wakes one worker, however many are idle, and the next one another. A watch that is not renewed for seconds
is over, and the next worker that looks puts a new turn into the list.
"""

from __future__ import annotations

from enum import Enum, auto
from hashlib import sha1
from socket import gethostname
from time import monotonic
from typing import TYPE_CHECKING, Any

import redis

from repot.brokers.redis.claims import HAND_ON, Claims, ClaimsOfProcess, is_claim, tails_of
from repot.brokers.redis.error_replies import Meaning, meaning_of
from repot.config.redis import ATOMIC_CLAIM, DEFAULT_CLAIM_LEASE_S
from repot.logs import get_logger
from repot.upstream.redis_connections import close_link, take_connection
from repot.upstream.redis_start import command_name, is_unknown, said_of_refusal, was_closed
from repot.upstream.redis_transport import (
    NOTICE,
    ClaimingChannel,
    ClaimingQoS,
    mark_notices,
    next_answer,
    transports_with,
)
from repot.waiting import spread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

log = get_logger(__name__)

#: KEYS: the index, the hash, the turn, the watch, lists. ARGV: what stands before and after the time in the tag, the
#: owner if it has the turn or '', the milliseconds of a watch, the number of queues, what follows a message of each
#: queue. Returns the number of a list, a tag and the message; or 'watch' or 'wait' if the lists are empty.
#: Nothing is popped before it is recorded: Redis undoes nothing of a script that fails.
_CLAIM = f"""{HAND_ON}
local queues = tonumber(ARGV[5])
for number = 5, #KEYS do
  local element = redis.call('LINDEX', KEYS[number], -1)
  if element then
    -- a write that needs no memory, after which a full Redis refuses nothing
    redis.call('HDEL', KEYS[2], '')
    local time = redis.call('TIME')
    local tag = ARGV[1] .. time[1] .. string.format('%03d', math.floor(time[2] / 1000)) .. ARGV[2]
    redis.call('HSET', KEYS[2], tag, '[' .. element .. ARGV[6 + (number - 5) % queues])
    redis.call('ZADD', KEYS[1], time[1] .. '.' .. string.format('%06d', time[2]), tag)
    redis.call('RPOP', KEYS[number])
    if ARGV[3] ~= '' then hand_on(KEYS[3], KEYS[4]) end
    return {{number - 5, tag, element}}
  end
end
if ARGV[3] ~= '' then
  redis.call('SET', KEYS[4], ARGV[3], 'PX', ARGV[4])
  return 'watch'
end
if redis.call('EXISTS', KEYS[4]) == 0 then hand_on(KEYS[3], KEYS[4]) end
return 'wait'
"""
_CLAIM_SHA = sha1(_CLAIM.encode(), usedforsecurity=False).hexdigest()

#: KEYS: the hash, the index, a list that does not exist. Meets every right that a claim needs, and changes nothing.
_TRY_RIGHTS = """
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], '', '')
redis.call('HDEL', KEYS[1], '')
redis.call('ZADD', KEYS[2], 0, '')
redis.call('ZREM', KEYS[2], '')
redis.call('LPUSH', KEYS[3], '')
redis.call('LINDEX', KEYS[3], -1)
redis.call('RPOP', KEYS[3])
redis.call('RPUSH', KEYS[3], '')
redis.call('LPOP', KEYS[3])
redis.call('LLEN', KEYS[3])
redis.call('HGET', KEYS[1], '')
redis.call('HEXISTS', KEYS[1], '')
redis.call('ZSCORE', KEYS[2], '')
redis.call('ZRANGEBYSCORE', KEYS[2], 0, 0)
redis.call('GET', KEYS[3])
redis.call('EXPIRE', KEYS[3], 1)
redis.call('SET', KEYS[3], '', 'PX', 1)
redis.call('DEL', KEYS[3])
return redis.call('TIME')[1]
"""
_TRY_RIGHTS_SHA = sha1(_TRY_RIGHTS.encode(), usedforsecurity=False).hexdigest()

#: Redis tells of changes to the lists that the command after CLIENT CACHING reads; not of those that scripts read,
#: which would wake every idle worker for each message.
_TRACK = ("CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP")
_TRACK_NEXT = ("CLIENT", "CACHING", "YES")

#: Seconds that a watch lasts, which is renewed every second.
_WATCH_S = 3
#: A worker waits for its turn so many seconds at once: many that start together do not look together for long.
_WAIT_S = (1.5, 3.0)

#: kombu's options that say where what is.
_KEY_OPTIONS = (
    "global_keyprefix",
    "sep",
    "priority_steps",
    "unacked_key",
    "unacked_index_key",
    "visibility_timeout",
)

#: Options of this transport.
_OPTIONS = ("claim", "claim_lease")

_PROCESS = ClaimsOfProcess()


class _State(Enum):
    """What a channel waits for."""

    IDLE = auto()
    #: The answer of the script.
    CLAIMING = auto()
    #: The turn.
    WAITING = auto()
    #: The answer whether its lists are empty, after which Redis tells of a message.
    ARMING = auto()
    #: To be told of a message.
    WATCHING = auto()


class ClaimSource:
    """Takes one channel's messages by claims."""

    def __init__(
        self, claims: Claims, queues_now: Callable[[], Sequence[str]], lists_of: Callable[[Sequence[str]], list[str]]
    ) -> None:
        """Claim for a process; `queues_now` names the queues that are consumed, `lists_of` the lists of queues."""
        self._claims, self._queues_now, self._lists_of = claims, queues_now, lists_of
        claims.consume()
        self._state = _State.IDLE
        self._connection: Any = None
        self._tracked: object = None
        self._has_turn = self._is_stopped = False
        self._queues: Sequence[str] = ()
        self._lists: list[str] = []
        self._sent_at = 0.0
        #: The error with which Redis has answered last; empty after another answer.
        self._refusal = ""

    @property
    def is_asking(self) -> bool:
        """Return whether an answer or a notice is awaited."""
        return self._state is not _State.IDLE

    @property
    def is_watching(self) -> bool:
        """Return whether only a notice is awaited, which comes with the next message."""
        return self._state is _State.WATCHING

    @property
    def may_wait_s(self) -> float:
        """Return for how long Redis may wait before it answers what was asked last."""
        return _WAIT_S[1] if self._state is _State.WAITING else 0.0

    def ask(self, connection: Any, link: object) -> None:  # noqa: ANN401 - redis-py's connection
        """Ask for a message of the queues that are consumed."""
        self._connection = connection
        if self._tracked is not link:
            # a new link has to say it again
            self._has_turn = False
            connection.send_command(*_TRACK)
            connection.read_response()
            mark_notices(connection)
            self._tracked = link
        self._claim()

    def ask_again(self) -> None:
        """Look for messages, and keep the watch."""
        self._claim()

    def read(self) -> tuple[str, str, bytes] | None:
        """Read what has come, and go on; a message ends that."""
        while True:
            state = self._state
            try:
                answer = next_answer(self._connection)
            except redis.ResponseError as error:
                self._refused(error)
                return None
            if answer is NOTICE and state is _State.WATCHING:
                self._claim()
                return None
            if not self._is_passed_over(answer):
                return self._answered(state, answer)
            # what is buffered makes no socket readable; a closing channel needs the answer
            if not self._is_stopped and not self._connection.can_read(timeout=0):
                return None

    def _refused(self, error: redis.ResponseError) -> None:
        self._state = _State.IDLE
        if isinstance(error, redis.exceptions.NoScriptError):
            if not self._is_stopped:
                self._claim(by_text=True)
            return
        if not _passes(error):
            raise error
        if str(error) != self._refusal:
            reason = meaning_of(error).reason
            log.error("Redis gives out no message: %s (%s); asking again each second", error, reason)
        self._refusal = str(error)
        # `ask_again` comes after a second
        self._state = _State.IDLE if self._is_stopped else _State.WATCHING

    def _answered(self, state: _State, answer: Any) -> tuple[str, str, bytes] | None:  # noqa: ANN401 - an answer
        self._state = _State.IDLE
        if self._refusal and state is _State.CLAIMING:
            log.warning("Redis gives out messages again")
            self._refusal = ""
        if isinstance(answer, list) and state is _State.CLAIMING:
            return self._taken(*answer)
        if not self._is_stopped:
            self._go_on(state, answer)
        return None

    def _is_passed_over(self, answer: Any) -> bool:  # noqa: ANN401 - an answer
        """Return whether what was read is not the answer to what was asked: a notice that comes late, or another's."""
        if self._state is _State.WATCHING:
            return True
        waited = self._state is _State.WAITING and monotonic() - self._sent_at > _WAIT_S[0] / 2
        tracks = self._state is _State.ARMING and answer == b"OK"
        return answer is NOTICE or tracks or (answer is None and not waited)

    def set_aside(self, tag: str, problem: Exception) -> None:
        """Put a message that cannot be read where no consumer finds it."""
        self._claims.set_aside(tag, problem)

    def stop(self) -> None:
        """Ask no more; what a script has taken is read first."""
        if not self._is_stopped:
            self._claims.cease()
            if self._has_turn:
                self._claims.hand_on(self._turn)
        self._is_stopped = True
        if self._state is not _State.CLAIMING:
            self._state = _State.IDLE

    def _go_on(self, state: _State, answer: Any) -> None:  # noqa: ANN401 - an answer
        if state is _State.CLAIMING and answer == b"watch":
            self._connection.send_command(*_TRACK_NEXT)
            self._send(_State.ARMING, "EXISTS", *self._lists)
        elif state is _State.CLAIMING:
            self._has_turn = False
            self._send(_State.WAITING, "BRPOP", self._turn, round(spread(*_WAIT_S), 2))
        elif state is _State.ARMING and not answer:
            self._state = _State.WATCHING
            if self._connection.can_read(timeout=0):
                # the notice came with the answer, and makes no socket readable
                self._claim()
        else:
            self._has_turn = self._has_turn or (state is _State.WAITING and answer is not None)
            self._claim()

    def _taken(self, number: int, tag: bytes, element: bytes) -> tuple[str, str, bytes] | None:
        self._has_turn = False
        name = tag.decode(errors="surrogateescape")
        if monotonic() - self._sent_at > self._claims.lease_s / 2 and not self._claims.still_holds(name):
            # this process slept for so long that another one has the message
            return None
        self._claims.hold(name)
        return self._queues[number % len(self._queues)], name, element

    @property
    def _turn(self) -> str:
        which = sha1("\n".join(sorted(self._lists)).encode(), usedforsecurity=False).hexdigest()[:12]
        return f"{self._claims.hash}_turn:{which}"

    def _note_queues(self) -> None:
        """Note which queues are consumed, which remote control changes also while nothing comes."""
        queues = list(self._queues_now())
        lists = self._lists_of(queues)
        if self._has_turn and set(lists) != set(self._lists):
            # the turn of other workers
            self._claims.hand_on(self._turn)
            self._has_turn = False
        self._queues, self._lists = queues, lists

    def _claim(self, *, by_text: bool = False) -> None:
        self._note_queues()
        if not self._lists:
            # until a queue is added, which `ask_again` finds
            self._state = _State.WATCHING
            return
        turn, (before, after) = self._turn, self._claims.next_tag()
        keys = [self._claims.index, self._claims.hash, turn, f"{turn}:watch", *self._lists]
        owner = self._claims.worker if self._has_turn else ""
        arguments = [before, after, owner, 1000 * _WATCH_S, len(self._queues), *tails_of(self._queues)]
        script = ("EVAL", _CLAIM) if by_text else ("EVALSHA", _CLAIM_SHA)
        self._send(_State.CLAIMING, *script, len(keys), *keys, *arguments)

    def _send(self, state: _State, *command: object) -> None:
        self._state, self._sent_at = state, monotonic()
        self._connection.send_command(*command)


def _passes(error: redis.ResponseError) -> bool:
    """Return whether Redis may answer differently in a while: a worker that exits would meet the same at its start."""
    return meaning_of(error).meaning in (Meaning.UNAVAILABLE, Meaning.REFUSED)


class _QoS(ClaimingQoS):
    """What a channel of this transport holds."""

    #: Tells whether a message's task runs, and goes on when the connection is lost; set by a worker.
    is_running: Callable[[Any], bool] | None = None

    @property
    def _channel(self) -> Any:  # noqa: ANN401 - Channel or SentinelChannel
        return self.channel

    def is_claim(self, tag: str) -> bool:
        """Return whether a tag is a claim's."""
        return is_claim(tag)

    def settle(self, tag: str) -> None:
        """Remove a message for good."""
        self._channel.claims.settle(tag)

    def give_back(self, tag: str, *, first: bool) -> bool:
        """Put a message back; return whether Redis answered."""
        return bool(self._channel.claims.give_back(tag, first=first))

    def leave(self, tags: list[str]) -> None:
        """Let go of messages, which return when their leases have run out."""
        self._channel.claims.leave(tags)

    def restore_visible(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - kombu's
        """Look for overdue messages, unless Redis refuses that for now."""
        try:
            return super().restore_visible(*arguments, **options)
        except redis.ResponseError as error:
            # a server that does not know the scripts of kombu's lock, which its connection says
            if not _passes(error) and not is_unknown(error):
                raise
            return None

    def is_kept(self, message: Any) -> bool:  # noqa: ANN401 - kombu's
        """Return whether the task of a message goes on running."""
        return self.is_running is not None and self.is_running(message)


class _Channel(ClaimingChannel):
    """Claims messages if `broker_transport_options` say so."""

    QoS = _QoS

    claim = ""
    claim_lease: float = DEFAULT_CLAIM_LEASE_S
    _claims: Claims | None = None

    @property
    def wants_notices(self) -> bool:
        """Return whether the channel is to claim messages."""
        return self.claim == ATOMIC_CLAIM

    @property
    def claims(self) -> Claims:
        """The claims of this process on the channel's database, by its options; they outlive the channel."""
        if self._claims is None:
            channel: Any = self
            server = channel.connection.client
            keys = {name: getattr(self, name) for name in _KEY_OPTIONS}
            here = (server.hostname, server.port, server.virtual_host, server.userid)
            # of a failover list any server may be the primary, and has what the one before had
            servers = tuple(server.alt or ())
            place = (servers if len(servers) > 1 else here, self.claim_lease, repr(keys))
            self._claims = _PROCESS.at(place, lambda: self._make_claims(keys))
            self._claims.follow(here, self.lasting_pool)
        return self._claims

    def is_claimed(self, tag: str) -> bool:
        """Return whether a delivery tag is a claim's."""
        return is_claim(tag)

    def serve_worker(self, worker: str, is_running: Callable[[Any], bool]) -> None:
        """Claim for a worker; the messages whose tasks run stay in its hands when the channel closes."""
        channel: Any = self
        self.claims.worker = worker
        channel.qos.is_running = is_running

    def _make_claims(self, keys: Mapping[str, Any]) -> Claims:
        return Claims(self.lasting_pool, keys, float(self.claim_lease), gethostname())

    def make_source(self) -> ClaimSource | None:
        """Return what claims messages; None if that is switched off, or the server cannot."""
        if not self.wants_notices:
            return None
        channel: Any = self
        problem = _why_not(channel.client.connection_pool, self.claims)
        if problem:
            log.warning(
                "messages are taken with BRPOP, and one that is taken when its worker dies is lost: %s",
                problem,
                extra={"action": "claim_unavailable"},
            )
            return None
        return ClaimSource(self.claims, self.queues_now, self.lists_of)


def _why_not(pool: Any, claims: Claims) -> str:  # noqa: ANN401 - redis-py's
    """Return why a server, or a proxy before it, cannot do what claims need; empty if it can.

    Raises:
        redis.ConnectionError: the server is away.
    """
    problem, by_closing = _refused(pool, claims)
    # a server that was away for a moment refuses nothing
    return _refused(pool, claims)[0] if by_closing else problem


def _refused(pool: Any, claims: Claims) -> tuple[str, bool]:  # noqa: ANN401 - redis-py's
    """Try what claims need on a connection of its own; return what is refused, and whether by closing it."""
    connection = take_connection(pool)
    connection.is_trial = True
    try:
        if str(connection.protocol) != "3":
            return "HELLO 3 is refused, and the connection does not use RESP3", False
        trial = f"{claims.hash}_turn:trial"
        for command in (
            _TRACK,
            ("EVAL", _TRY_RIGHTS, 3, claims.hash, claims.index, trial),
            ("EVALSHA", _TRY_RIGHTS_SHA, 3, claims.hash, claims.index, trial),
            _TRACK_NEXT,
            ("EXISTS", trial),
        ):
            name = command_name(command)
            try:
                connection.send_command(*command)
                connection.read_response()
            except redis.ResponseError as error:
                return f"{name} is refused: {said_of_refusal(error)}", False
            except redis.ConnectionError as error:
                if not was_closed(error):
                    raise
                return f"{name} is refused: the connection was closed", True
        return "", False
    finally:
        connection.is_trial = False
        close_link(connection)
        pool.release(connection)


#: The classes that kombu finds by their names.
Transport, SentinelTransport = transports_with(_Channel, _OPTIONS)
