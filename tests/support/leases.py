"""Lease stores for tests, whose clock can be moved, and a state machine that compares a store with its model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test
from sqlalchemy import update

from repot.config import ExplicitSettings
from repot.database.migrate import Migrations
from repot.database.schema import idempotency
from repot.idempotency.database_store import DatabaseLeaseStore
from repot.idempotency.fingerprint import Fingerprint
from repot.idempotency.lease_store import RedisLeaseStore
from repot.idempotency.memory_store import MemoryLeaseStore
from repot.idempotency.records import (
    Acquired,
    Ending,
    FinishMode,
    FinishResult,
    LeaseRequest,
    Parked,
    Record,
    Running,
    RunOutcome,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from repot.idempotency.records import Answer, LeaseStore

#: Moves a record into the past, as if the server's clock had advanced.
_AGE = """
local left = redis.call('PTTL', KEYS[1])
if left > 0 and left <= tonumber(ARGV[1]) then
  return redis.call('DEL', KEYS[1])
end
for _, name in ipairs({'expires_at', 'started_at', 'ended_at', 'parked_at'}) do
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
    """A store whose clock a test can advance."""

    @property
    def store(self) -> LeaseStore: ...

    def advance(self, seconds: float) -> None: ...


class TimedMemory:
    """The test double."""

    def __init__(self) -> None:
        self.store = MemoryLeaseStore()

    def advance(self, seconds: float) -> None:
        self.store.advance(seconds)


class TimedRedis:
    """A real store, under a prefix of its own."""

    def __init__(self, url: str, **changes: Any) -> None:
        self.settings = ExplicitSettings(lease_store=url, lease_prefix=f"test-{uuid4()}", **changes)
        self.store = RedisLeaseStore(self.settings)

    def advance(self, seconds: float) -> None:
        for record in list(self.store.records()):
            self.store.client.eval(_AGE, 1, self.store.name_of(record.key), round(seconds * 1000))


class TimedDatabase:
    """A store in a database whose tables exist, under a prefix of its own."""

    def __init__(self, url: str, **changes: Any) -> None:
        self.settings = ExplicitSettings(lease_store=url, lease_prefix=f"test-{uuid4()}", **changes)
        self.store = DatabaseLeaseStore(self.settings)
        Migrations(self.store.database).apply()

    def advance(self, seconds: float) -> None:
        own = idempotency.c.prefix == self.settings.lease_prefix
        moments = ("started_at", "expires_at", "ended_at", "deleted_at")
        step = update(idempotency).where(own).values({name: idempotency.c[name] - seconds for name in moments})
        self.store.database.transact(lambda connection: connection.execute(step))


def lease_request(task_id: str = "", **terms: Any) -> LeaseRequest:
    """Return a request for a lease of an hour, with a retention of ten days."""
    defaults: Mapping[str, Any] = {"worker": "w", "lease_s": 3600, "retention_s": 864000}
    return LeaseRequest(uuid4().hex, "shop.charge", task_id or str(uuid4()), **{**defaults, **terms})


DAY_S = 86400.0

#: Far from each other, so that the moments a real store needs decide nothing.
_HOLDS = st.sampled_from([0.0, 7 * 3600.0])
_STEPS = st.sampled_from([600.0, 2 * 3600.0, 4 * 3600.0, 11 * DAY_S])
_KEYS = st.sampled_from(["a" * 64, "b" * 64])


class StoreMachine(RuleBasedStateMachine):
    """Run the same steps on a store and on its model, and compare every answer.

    The model is the test double, so this also tests the double.
    """

    def make(self) -> Timed:
        """The store under test."""
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.real = self.make()
        self.model = TimedMemory()
        self.fencing_tokens: dict[str, int] = {}

    requests: Bundle[tuple[str, LeaseRequest]] = Bundle("requests")

    @rule(
        target=requests,
        key=_KEYS,
        task_id=st.sampled_from(["t1", "t2"]),
        payload=st.sampled_from(["", "p1", "p2"]),
        replay=st.integers(0, 2),
        parks=st.booleans(),
        max_unknown_outcomes=st.sampled_from([2, 1000]),
        grace_s=st.sampled_from([0, 0, 31.5]),
    )
    def acquire(self, key: str, task_id: str, payload: str, **terms: Any) -> Any:
        who = lease_request(task_id, **terms)
        self._acquire(Fingerprint(key, payload), who)
        return key, who

    @rule(request=requests, payload=st.sampled_from(["", "p1"]))
    def acquire_again(self, request: tuple[str, LeaseRequest], payload: str) -> None:
        """The answer was lost, or the owner is late."""
        self._acquire(Fingerprint(request[0], payload), request[1])

    @rule(target=requests, request=requests, parks=st.booleans())
    def acquire_after_no_answer(self, request: tuple[str, LeaseRequest], parks: bool) -> Any:
        """The message comes again, and names the owner whose request was not answered."""
        key, before = request
        who = lease_request(before.task_id, parks=parks, unanswered=(before.owner, "another"))
        self._acquire(Fingerprint(key, "p1"), who)
        return key, who

    @rule(request=requests)
    def renew(self, request: tuple[str, LeaseRequest]) -> None:
        assert self.model.store.renew(*request) == self.real.store.renew(*request)

    @rule(
        request=requests,
        outcome=st.sampled_from(RunOutcome),
        mode=st.sampled_from(FinishMode),
        result=st.sampled_from([None, "", "1"]),
        hold_s=_HOLDS,
        held_for=st.sampled_from(["", "t1"]),
    )
    def finish(
        self,
        request: tuple[str, LeaseRequest],
        outcome: RunOutcome,
        mode: FinishMode,
        result: str | None,
        hold_s: float,
        held_for: str,
    ) -> None:
        self._finish(request, Ending(outcome, 10 * DAY_S, result, "why", hold_s, held_for), mode)

    @rule(request=consumes(requests))
    def finish_once_and_again(self, request: tuple[str, LeaseRequest]) -> None:
        for _ in range(2):
            self._finish(request, Ending(RunOutcome.DONE, 10 * DAY_S, "2"), FinishMode.IN_LEASE)

    @rule(seconds=_STEPS)
    def time_passes(self, seconds: float) -> None:
        self.model.advance(seconds)
        self.real.advance(seconds)

    @invariant()
    def both_have_the_same_on_record(self) -> None:
        for key in ("a" * 64, "b" * 64):
            expected, found = self.model.store.inspect(key), self.real.store.inspect(key)
            assert comparable(expected) == comparable(found)

    def _acquire(self, fingerprint: Fingerprint, who: LeaseRequest) -> None:
        expected, found = self.model.store.acquire(fingerprint, who), self.real.store.acquire(fingerprint, who)
        assert comparable(expected) == comparable(found)
        if isinstance(found, Acquired):
            assert found.fencing_token >= self.fencing_tokens.get(fingerprint.key, 0)
            self.fencing_tokens[fingerprint.key] = found.fencing_token

    def _finish(self, request: tuple[str, LeaseRequest], ending: Ending, mode: FinishMode) -> None:
        key, who = request
        before = self.model.store.inspect(key)
        expected = self.model.store.finish(key, who.owner, ending, mode)
        assert expected == self.real.store.finish(key, who.owner, ending, mode)
        if before and before.owner != who.owner:
            # no request ends the lease of another owner
            assert expected is FinishResult.LOST


def drive(make: Callable[[], Timed], machine: type[StoreMachine] = StoreMachine, examples: int = 20) -> None:
    """Let hypothesis drive a real store, a new one for each example, and the test double."""

    class Driven(machine):  # type: ignore[misc, valid-type]
        def make(self) -> Timed:
            return make()

    budget = settings(max_examples=examples, stateful_step_count=30, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Driven, settings=budget)  # type: ignore[no-untyped-call]


def comparable(answer: Answer | Record | None) -> object:
    """Return an answer without the values that depend on the clock."""
    match answer:
        case Acquired(runs=runs, after=after):
            return "acquired", runs, after
        case Running(remaining_s=remaining_s, task_id=task_id, worker=worker):
            return "running", round(remaining_s / 600), task_id, worker
        case Parked(task_id=task_id, worker=worker, unknown_outcomes=unknown_outcomes, first=first):
            return "parked", task_id, worker, unknown_outcomes, first
        case Record():
            ended = answer.ended_at is not None
            return (
                *(
                    answer.state,
                    answer.owner,
                    answer.task_id,
                    answer.runs,
                    answer.unknown_outcomes,
                    answer.replay,
                    ended,
                ),
                *(round(answer.remaining_s / 600), answer.parked, answer.has_result, answer.error),
            )
        case _:
            return answer
