"""Lease stores for tests, whose time can be moved, and the machine that compares one with its model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test

from repot.config import ExplicitSettings
from repot.idempotency.claims import Claimant, Claimed, Ending, Outcome, Parked, Record, Running, Verdict
from repot.idempotency.fingerprint import Fingerprint
from repot.idempotency.store import RedisStore
from repot.idempotency.testing import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from repot.idempotency.claims import Answer, Store

#: Moves a record into the past, which is to it as if the server's clock went on.
_AGE = """
local left = redis.call('PTTL', KEYS[1])
if left > 0 and left <= tonumber(ARGV[1]) then
  return redis.call('DEL', KEYS[1])
end
for _, name in ipairs({'until', 'began', 'ended', 'parked'}) do
  local moment = redis.call('HGET', KEYS[1], name)
  if moment then
    redis.call('HSET', KEYS[1], name, moment - ARGV[1])
  end
end
if left > 0 then
  redis.call('PEXPIRE', KEYS[1], left - ARGV[1])
end
return 0
"""


class Timed(Protocol):
    """A store in whose world time can pass."""

    @property
    def store(self) -> Store: ...

    def advance(self, seconds: float) -> None: ...


class TimedMemory:
    """The test double."""

    def __init__(self) -> None:
        self.store = MemoryStore()

    def advance(self, seconds: float) -> None:
        self.store.advance(seconds)


class TimedRedis:
    """A real store, under a prefix of its own."""

    def __init__(self, url: str, **changes: Any) -> None:
        self.settings = ExplicitSettings(lease_store=url, lease_prefix=f"test-{uuid4()}", **changes)
        self.store = RedisStore(self.settings)

    def advance(self, seconds: float) -> None:
        for record in list(self.store.records()):
            self.store.client.eval(_AGE, 1, self.store.name_of(record.key), round(seconds * 1000))


def claimant(task_id: str = "", **terms: Any) -> Claimant:
    """Somebody who claims; a lease of an hour, kept for ten days."""
    defaults: Mapping[str, Any] = {"worker": "w", "lease_s": 3600, "kept_s": 864000}
    return Claimant(uuid4().hex, "shop.charge", task_id or str(uuid4()), **{**defaults, **terms})


DAY_S = 86400.0

#: Far from each other, so that the moments a real store needs decide nothing.
_HOLDS = st.sampled_from([0.0, 7 * 3600.0])
_STEPS = st.sampled_from([600.0, 2 * 3600.0, 4 * 3600.0, 11 * DAY_S])
_KEYS = st.sampled_from(["a" * 64, "b" * 64])


class StoreMachine(RuleBasedStateMachine):
    """Does the same to a store and to its model, and compares every answer.

    The model is the test double, so that this also shows that the double is true.
    """

    def make(self) -> Timed:
        """The store under test."""
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.real = self.make()
        self.model = TimedMemory()
        self.fences: dict[str, int] = {}

    claims: Bundle[tuple[str, Claimant]] = Bundle("claims")

    @rule(
        target=claims,
        key=_KEYS,
        task_id=st.sampled_from(["t1", "t2"]),
        payload=st.sampled_from(["", "p1", "p2"]),
        replay=st.integers(0, 2),
        parks=st.booleans(),
        most_doubts=st.sampled_from([2, 1000]),
    )
    def claim(self, key: str, task_id: str, payload: str, replay: int, parks: bool, most_doubts: int) -> Any:
        who = claimant(task_id, replay=replay, parks=parks, most_doubts=most_doubts)
        self._claim(Fingerprint(key, payload), who)
        return key, who

    @rule(claim=claims, payload=st.sampled_from(["", "p1"]))
    def claim_again(self, claim: tuple[str, Claimant], payload: str) -> None:
        """The answer was lost, or the owner is a late one."""
        self._claim(Fingerprint(claim[0], payload), claim[1])

    @rule(claim=claims)
    def renew(self, claim: tuple[str, Claimant]) -> None:
        assert self.model.store.renew(*claim) == self.real.store.renew(*claim)

    @rule(
        claim=claims,
        outcome=st.sampled_from(Outcome),
        how=st.sampled_from(["", "late", "person", "force"]),
        result=st.sampled_from([None, "", "1"]),
        hold_s=_HOLDS,
        held_for=st.sampled_from(["", "t1"]),
    )
    def finish(
        self, claim: tuple[str, Claimant], outcome: Outcome, how: str, result: str | None, hold_s: float, held_for: str
    ) -> None:
        self._finish(claim, Ending(outcome, 10 * DAY_S, result, "why", hold_s, held_for), how)

    @rule(claim=consumes(claims))
    def finish_once_and_again(self, claim: tuple[str, Claimant]) -> None:
        for _ in range(2):
            self._finish(claim, Ending(Outcome.DONE, 10 * DAY_S, "2"), "")

    @rule(seconds=_STEPS)
    def time_passes(self, seconds: float) -> None:
        self.model.advance(seconds)
        self.real.advance(seconds)

    @invariant()
    def both_have_the_same_on_record(self) -> None:
        for key in ("a" * 64, "b" * 64):
            expected, found = self.model.store.inspect(key), self.real.store.inspect(key)
            assert comparable(expected) == comparable(found)

    def _claim(self, fingerprint: Fingerprint, who: Claimant) -> None:
        expected, found = self.model.store.claim(fingerprint, who), self.real.store.claim(fingerprint, who)
        assert comparable(expected) == comparable(found)
        if isinstance(found, Claimed):
            assert found.fence >= self.fences.get(fingerprint.key, 0)
            self.fences[fingerprint.key] = found.fence

    def _finish(self, claim: tuple[str, Claimant], ending: Ending, how: str) -> None:
        key, who = claim
        before = self.model.store.inspect(key)
        expected = self.model.store.finish(key, who.owner, ending, how)
        assert expected == self.real.store.finish(key, who.owner, ending, how)
        if before and before.owner != who.owner:
            # nobody ends another's claim, whatever they say
            assert expected is Verdict.LOST


def drive(url: str) -> None:
    """Let hypothesis drive a real store and the double."""

    class Driven(StoreMachine):
        def make(self) -> Timed:
            return TimedRedis(url)

    budget = settings(max_examples=60, stateful_step_count=30, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Driven, settings=budget)  # type: ignore[no-untyped-call]


def comparable(answer: Answer | Record | None) -> object:
    """An answer without what two clocks cannot agree on."""
    match answer:
        case Claimed(runs=runs, after=after):
            return "claimed", runs, after
        case Running(remaining_s=remaining_s, task_id=task_id, worker=worker):
            return "running", round(remaining_s / 600), task_id, worker
        case Parked(task_id=task_id, worker=worker, doubts=doubts, first=first):
            return "parked", task_id, worker, doubts, first
        case Record():
            ended = answer.ended is not None
            return (
                *(answer.state, answer.owner, answer.task_id, answer.runs, answer.doubts, answer.replay, ended),
                *(round(answer.remaining_s / 600), answer.parked, answer.has_result, answer.error),
            )
        case _:
            return answer
