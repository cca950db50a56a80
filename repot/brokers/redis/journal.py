"""The journal of a move in a Redis (`repot.brokers.journal_hashes`).

A step is a list of commands that a script runs if the fencing token is the journal's; `STEP` is that script, for others
to put after their own.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from repot.brokers.journal import JournalStep
from repot.brokers.journal_hashes import AUDIT_LINES, LEASE, REQUESTS, identities_in
from repot.errors import AlreadyMoving, LeaseLost
from repot.store.hashes import HashRecords
from repot.store.lease import acquiring, renewing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from repot.brokers.journal import Identities, Lines
    from repot.brokers.journal_hashes import JournalHashes

#: Runs a command; raises repot's errors in place of redis-py's.
Ask: TypeAlias = "Callable[[Callable[[], Any]], Any]"

#: `journal` is a step as JSON. Fields of a move whose token another owner has are never changed.
STEP = """
local function fenced(journal)
  return redis.call('HGET', journal.key, 'token') ~= journal.token
end
local function apply(journal)
  for _, command in ipairs(journal.commands) do redis.call(unpack(command)) end
end
"""

#: ARGV: the step, lease in ms, and the fields to return. False if the token is not the journal's.
_APPLY = f"""{STEP}
local journal = cjson.decode(ARGV[1])
if fenced(journal) then return false end
apply(journal)
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], 'lease_until', string.format('%.0f', time[1] * 1000 + time[2] / 1000 + tonumber(ARGV[2])))
local found = {{}}
for index = 3, #ARGV do found[index - 2] = redis.call('HGET', KEYS[1], ARGV[index]) or '' end
return found
"""

#: ARGV: field, value, ... Returns 0 if the journal exists.
_CREATE = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV))
return 1
"""

#: ARGV: field, move. Returns the owner that was there.
_OWN = """
local owner = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if owner == '' then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
return owner
"""
_DISOWN = "if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then redis.call('HDEL', KEYS[1], ARGV[1]) end"


class RedisJournal:
    """The `Journal` on a Redis or Valkey."""

    def __init__(self, client: Any, hashes: JournalHashes, ask: Ask) -> None:  # noqa: ANN401 - redis.Redis
        """Keep it under the keys of `hashes`."""
        self._client, self._hashes, self._ask = client, hashes, ask
        self.key, self.direction = hashes.key, hashes.direction
        # a mover has no right to HMGET
        self._lease = HashRecords(
            lambda script, keys, text: self._run(script, text, key=keys[0]), LEASE, read_by="HGET"
        )

    def read(self) -> dict[str, str]:
        """Return all fields."""
        found: dict[str, str] = self._ask(lambda: self._client.hgetall(self.key))
        return found

    def now(self) -> float:
        """Return Redis' time."""
        seconds, microseconds = map(int, self._ask(self._client.time))
        return seconds + microseconds / 1e6

    def create(self, fields: Mapping[str, str]) -> bool:
        """Create it unless it exists."""
        words = [word for pair in fields.items() for word in pair]
        return bool(self._run(_CREATE, *words))

    def acquire(self, owner: str, lease_s: float, replaced: str = "") -> str:
        """Acquire the lease."""
        held, _ = self._lease.apply(self.key, acquiring(owner, lease_s, replaced, keeps_token=False))
        if held.token is None:
            raise AlreadyMoving.by(held.owner, held.remaining_s)
        return str(held.token)

    def release(self, token: str) -> None:
        """End the lease if this token is the last one."""
        self._lease.apply(self.key, renewing(int(token), 0))

    def step(self, token: str, lines: Lines) -> JournalStep:
        """Return the commands of a change."""
        return JournalStep(self.key, token, tuple(self._hashes.commands(lines)))

    def apply(self, step: JournalStep, lease_s: float) -> dict[str, str]:
        """Apply a step, renew the lease, and return what operators asked for."""
        found = self._run(_APPLY, step_text(step), round(lease_s * 1000), *REQUESTS)
        if found is None:
            raise LeaseLost.of_move(self.key)
        return dict(zip(REQUESTS, found, strict=True))

    def identities(self, queue: str, kind: str) -> Identities:
        """Return the identities of a kind."""
        keys = self._hashes.identities(queue, kind)
        return identities_in(self._ask(partial(self._client.hgetall, key)) for key in keys)

    def own(self, field: str, move: str) -> str:
        """Note an owner unless there is one."""
        return str(self._run(_OWN, field, move, key=self._hashes.owners))

    def disown(self, field: str, move: str) -> None:
        """Forget an owner."""
        self._run(_DISOWN, field, move, key=self._hashes.owners)

    def ask(self, put: Mapping[str, str], audit: str) -> None:
        """Set fields that the mover reads with its next step, and add to the audit."""

        def send() -> None:
            with self._client.pipeline(transaction=True) as pipeline:
                if put:
                    pipeline.hset(self.key, mapping=dict(put))
                pipeline.rpush(self._hashes.audit, audit)
                pipeline.ltrim(self._hashes.audit, -AUDIT_LINES, -1)
                pipeline.execute()

        self._ask(send)

    def audit(self) -> list[str]:
        """Return the lines of the audit."""
        found: list[str] = self._ask(lambda: self._client.lrange(self._hashes.audit, 0, -1))
        return found

    def _run(self, script: str, *words: object, key: str = "") -> Any:  # noqa: ANN401 - what the script returns
        return self._ask(lambda: self._client.register_script(script)(keys=[key or self.key], args=list(words)))


def step_text(step: JournalStep) -> str:
    """Return a step as the JSON that scripts read."""
    return json.dumps({"key": step.key, "token": step.token, "commands": step.commands})
