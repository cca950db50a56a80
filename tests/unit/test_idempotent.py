"""The guard on the test double: plain functions, asynchronous ones, tasks called in this process; renewal."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, Task

from repot.cli import leases
from repot.config import ExplicitSettings
from repot.errors import (
    AlreadyRunning,
    ConfigInvalid,
    LeaseLost,
    OutcomeUnknown,
    PayloadMismatch,
    PreviousRunFailed,
    ResultExpired,
    StoreUnreachable,
)
from repot.idempotency import FAIL_OPEN, PARK, Backoff, Guard, IdempotentTask, Policy, idempotent
from repot.idempotency.administration import Decision
from repot.idempotency.error_text import error_description
from repot.idempotency.fingerprint import Fingerprint
from repot.idempotency.memory_store import MemoryLeaseStore, guarded_by
from repot.idempotency.records import Acquired, State
from repot.renewal import Renewer
from repot.upstream.app_state import state_of
from repot.waiting import wait_until
from support.leases import lease_request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.idempotency.records import Answer, LeaseRequest


class Declined(Exception):
    """A permanent failure."""


@pytest.fixture
def store() -> MemoryLeaseStore:
    return MemoryLeaseStore()


@pytest.fixture
def guard(store: MemoryLeaseStore) -> Guard:
    return Guard(store, ExplicitSettings())


class Till:
    """Counts effects, and fails on request."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        self.error: BaseException | None = None

    def charge(self, order: str, amount: int = 1) -> dict[str, Any]:
        self.effects.append(order)
        if self.error:
            raise self.error
        return {"order": order, "amount": amount}


def test_a_function_has_its_effect_once_and_returns_the_first_result(guard: Guard) -> None:
    till = Till()
    charge = idempotent(guard)(till.charge)
    assert charge("o") == charge(order="o", amount=1) == {"order": "o", "amount": 1}
    assert till.effects == ["o"]


def test_a_function_that_runs_is_not_run_again(guard: Guard) -> None:
    @idempotent(guard)
    def nested() -> object:
        with pytest.raises(AlreadyRunning) as caught:
            nested()
        return round(caught.value.retry_after_s)

    assert nested() == 30


def test_exceptions_release_keep_or_leave_an_unknown_outcome(guard: Guard, store: MemoryLeaseStore) -> None:
    till = Till()
    policy = Policy(keep=(Declined,), uncertain=(TimeoutError,), on_unknown=PARK)
    charge = idempotent(guard, policy)(till.charge)
    for error, after in ((ValueError, ValueError), (Declined, PreviousRunFailed), (TimeoutError, OutcomeUnknown)):
        till.error = error()
        with pytest.raises(error):
            charge(error.__name__)
        with pytest.raises(after):
            charge(error.__name__)
    assert till.effects == ["ValueError", "ValueError", "Declined", "TimeoutError"]
    assert store is guard.store


def test_a_call_that_is_broken_off_has_an_unknown_outcome_once_its_lease_expired(
    guard: Guard, store: MemoryLeaseStore
) -> None:
    till = Till()
    till.error = KeyboardInterrupt()
    charge = idempotent(guard, Policy(on_unknown=PARK))(till.charge)
    with pytest.raises(KeyboardInterrupt):
        charge("o")
    with pytest.raises(AlreadyRunning):
        charge("o")
    store.advance(31)
    with pytest.raises(OutcomeUnknown):
        charge("o")


def test_a_function_whose_lease_another_took_says_so(guard: Guard, store: MemoryLeaseStore) -> None:
    other = Guard(store, ExplicitSettings())

    @idempotent(guard, name="charge")
    def first(order: str) -> str:
        store.advance(31)
        return second(order)

    @idempotent(other, name="charge")
    def second(order: str) -> str:
        return order

    with pytest.raises(LeaseLost):
        first("o")
    assert second("o") == "o"


def test_an_asynchronous_function(guard: Guard) -> None:
    effects = []

    @idempotent(guard)
    async def charge(order: str) -> str:
        effects.append(order)
        await asyncio.to_thread(Event().wait, 0.01)
        if order == "bad":
            raise ValueError(order)
        return order

    async def main() -> None:
        assert (await charge("o"), await charge("o")) == ("o", "o")
        for _ in range(2):
            with pytest.raises(ValueError, match="bad"):
                await charge("bad")
        both = await asyncio.gather(charge("p"), charge("p"), return_exceptions=True)
        assert {str, AlreadyRunning} == {type(found) for found in both}

    asyncio.run(main())
    assert effects == ["o", "bad", "bad", "p"]


def test_decorating_needs_neither_settings_nor_an_event_loop() -> None:
    """A module with guarded functions is imported where nothing is configured, and imports no web framework."""
    program = """
import sys
from asyncio.base_events import BaseEventLoop
from repot.idempotency import idempotent

def loop(*_):
    raise AssertionError("an event loop on import")

BaseEventLoop.__init__ = loop

def make():
    raise AssertionError("made on import")

@idempotent(make)
async def charge(order): ...

@idempotent(make)
def pay(order): ...

assert not {"fastapi", "uvicorn"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, env={"WORKER_BROKER_URL": "nonsense"})


def test_a_result_that_is_no_json_says_that_the_effect_is_done(guard: Guard) -> None:
    charge = idempotent(guard)(lambda: object())  # noqa: PLW0108 - a function of our own
    charge()
    with pytest.raises(ResultExpired):
        charge()


class Away(MemoryLeaseStore):
    """A store that does not answer."""

    def acquire(self, fingerprint: Fingerprint, lease_request: LeaseRequest) -> Answer:
        del fingerprint, lease_request
        message = "away"
        raise StoreUnreachable(message)


def test_without_a_store_a_function_runs_only_if_its_policy_says_so() -> None:
    guard, till = Guard(Away(), ExplicitSettings()), Till()
    with pytest.raises(StoreUnreachable):
        idempotent(guard)(till.charge)("o")
    assert idempotent(guard, Policy(on_store_down=FAIL_OPEN))(till.charge)("o")["order"] == "o"
    assert till.effects == ["o"]


@pytest.fixture
def app(store: MemoryLeaseStore) -> Iterator[Celery]:
    """An application whose tasks run in this process."""
    found = Celery("test", set_as_current=False, broker="memory://", backend="cache+memory://")
    found.conf.task_always_eager = True
    with guarded_by(found, store):
        yield found
    assert state_of(found).guard is None


def test_a_task_in_this_process_is_guarded_by_the_double(app: Celery, store: MemoryLeaseStore) -> None:
    till, fencing_tokens = Till(), []

    @app.task(base=IdempotentTask, bind=True, shared=False)
    def charge(self: Any, order: str, amount: int = 1) -> dict[str, Any]:
        fencing_tokens.append(self.fencing_token)
        self.ensure_lease_held()
        return till.charge(order, amount)

    assert charge.delay("o").get() == charge.delay(order="o").get() == {"order": "o", "amount": 1}
    assert till.effects == ["o"]
    assert fencing_tokens[0] > 0
    # a direct call: neither lease nor fencing token
    charge("o")
    assert fencing_tokens[-1] == 0
    store.advance(700000)
    charge.delay("o").get()
    assert till.effects == ["o", "o", "o"]


def test_a_callers_key(app: Celery) -> None:
    till = Till()

    @app.task(base=IdempotentTask, shared=False)
    def charge(order: str, amount: int = 1) -> dict[str, Any]:
        return till.charge(order, amount)

    assert charge.apply_async(("o",), idempotency_key="mine").get() == {"order": "o", "amount": 1}
    assert charge.apply_async((), {"order": "o"}, idempotency_key="mine").get() == {"order": "o", "amount": 1}
    with pytest.raises(PayloadMismatch):
        charge.apply_async(("other",), idempotency_key="mine").get()
    signature: Any = charge.s("other")
    assert signature.set(idempotency_key="theirs").apply_async().get()["order"] == "other"
    assert till.effects == ["o", "other"]


def test_a_late_run_learns_it_before_its_effect(app: Celery, store: MemoryLeaseStore) -> None:
    @app.task(base=IdempotentTask, bind=True, shared=False)
    def charge(self: Any) -> None:
        assert self.lease.is_held
        store.advance(31)
        # nothing became of it
        self.ensure_lease_held()
        store.advance(31)
        assert isinstance(store.acquire(self.fingerprint((), {}), lease_request()), Acquired)
        try:
            self.ensure_lease_held()
        finally:
            assert not self.lease.is_held

    with pytest.raises(LeaseLost, match="another run has acquired its key"):
        charge.delay().get()


class _Held:
    """Something to renew: counts, and is lost after some renewals."""

    interval_s = 0.05

    def __init__(self, renewals: int, errors: int = 0) -> None:
        self.left = renewals
        self.errors = errors
        self.renewed = 0

    def renew(self) -> bool:
        if self.errors:
            self.errors -= 1
            message = "away"
            raise StoreUnreachable(message)
        self.renewed += 1
        self.left -= 1
        return self.left > 0


def test_what_is_held_is_renewed_until_it_is_lost_or_dropped() -> None:
    renewer, lost, dropped = Renewer(), _Held(3, errors=2), _Held(1000)
    renewer.add(lost)
    renewer.add(dropped)
    wait_until(lambda: dropped.renewed >= 5, within_s=10, what="it is renewed")
    assert lost.renewed == 3
    renewer.remove(dropped)
    at = dropped.renewed
    again = _Held(1000)
    renewer.add(again)
    wait_until(lambda: again.renewed >= 3, within_s=10, what="the thread goes on")
    assert dropped.renewed <= at + 1
    renewer.remove(again)


def test_a_quick_lease_does_not_wait_for_a_slow_one() -> None:
    renewer, slow, quick = Renewer(), _Held(1000), _Held(1000)
    slow.interval_s = 3600
    renewer.add(slow)
    renewer.add(quick)
    wait_until(lambda: quick.renewed >= 2, within_s=5, what="the quick one is renewed")
    assert slow.renewed == 0


def test_what_could_not_be_sent_to_the_store_is_sent_later() -> None:
    renewer = Renewer()
    said: list[int] = []

    def say() -> None:
        said.append(len(said))
        if len(said) < 3:
            message = "away"
            raise StoreUnreachable(message)

    renewer.send_later(say, 0.05)
    wait_until(lambda: len(said) >= 3, within_s=10, what="it is said")
    renewer.send_later(lambda: said.append(9), 0.05)
    wait_until(lambda: 9 in said, within_s=10, what="the next is said")
    assert said == [0, 1, 2, 9]


def test_backoff_is_exponential_with_full_jitter_and_a_cap() -> None:
    backoff = Backoff(base_s=1, cap_s=60)
    for attempt, ceiling_s in ((0, 1), (1, 2), (5, 32), (6, 60), (10**6, 60)):
        assert ceiling_s == backoff.ceiling_s(attempt)
        drawn = [backoff.delay_s(attempt) for _ in range(300)]
        assert 0 <= min(drawn) < ceiling_s / 4
        assert ceiling_s * 3 / 4 < max(drawn) <= ceiling_s


def test_the_double_forgets_and_remembers(store: MemoryLeaseStore, guard: Guard) -> None:
    lease = guard.acquire(Fingerprint("k"), Policy(), task="t", task_id="1")
    assert not isinstance(lease, Acquired)
    record = store.inspect("k")
    assert record is not None
    assert State.RUNNING is record.state
    store.advance(10**7)
    assert store.inspect("k") is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"on_unknown": "park"},
        {"on_store_down": "fail-open"},
        {"key": "order"},
        {"key": ()},
        {"key": ["order"]},
        {"keep": ValueError},
        {"uncertain": ("TimeoutError",)},
        {"max_unknown_outcomes": 0},
        {"lease_s": 0},
        {"retention_s": -1},
        {"result_limit": -1},
        {"namespace": 7},
    ],
)
def test_a_policy_that_means_nothing_is_refused_when_it_is_made(wrong: dict[str, Any]) -> None:
    """`on_unknown="park"` would be taken for RERUN otherwise: the opposite."""
    with pytest.raises(ConfigInvalid, match=next(iter(wrong))):
        Policy(**wrong)


class _Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_an_exception_is_kept_in_words_that_can_be() -> None:
    assert error_description(_Speechless()) == "_Speechless"
    assert error_description(FileNotFoundError("no \udcff")) == "FileNotFoundError: no \\udcff"
    assert "hunter2" not in error_description(ValueError("cannot reach redis://:hunter2@host/0"))
    assert len(error_description(ValueError("x" * 5000))) == 1000


def test_an_exception_without_words_frees_its_key(guard: Guard) -> None:
    till = Till()
    till.error = _Speechless()
    charge = idempotent(guard)(till.charge)
    for _ in range(2):
        with pytest.raises(_Speechless):
            charge("o")


def test_a_result_too_deep_to_write_is_done_all_the_same(guard: Guard) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    charge = idempotent(guard)(lambda: deep)
    charge()
    with pytest.raises(ResultExpired):
        charge()


class HeldStore(MemoryLeaseStore):
    """A store that answers a request for a lease when it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.released = Event(), Event()

    def acquire(self, fingerprint: Fingerprint, lease_request: LeaseRequest) -> Answer:
        self.asked.set()
        assert self.released.wait(30)
        return super().acquire(fingerprint, lease_request)


@pytest.mark.parametrize("ends", [False, True], ids=["its loop goes on", "its loop ends"])
def test_a_call_that_is_cancelled_while_it_acquires_leaves_no_key_taken(*, ends: bool) -> None:
    store = HeldStore()
    # the key is given back when leases are renewed
    guard, effects = Guard(store, ExplicitSettings(lease=3)), []

    @idempotent(guard)
    async def charge(order: str) -> str:
        effects.append(order)
        return order

    def wait_until_released() -> None:
        wait_until(
            lambda: any(record and record.state is State.RELEASED for record in map(store.inspect, store.keys())),
            within_s=30,
            what="it is given back",
        )

    async def main() -> None:
        call = asyncio.ensure_future(charge("o"))
        await asyncio.to_thread(store.asked.wait, 30)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        store.released.set()
        if not ends:
            await asyncio.to_thread(wait_until_released)

    asyncio.run(main())
    wait_until_released()
    assert asyncio.run(charge("o")) == "o"
    assert effects == ["o"]


def test_many_leases_on_a_slow_store_are_all_renewed() -> None:
    """One after the other, the last of them would have run out."""

    class Slowly(_Held):
        interval_s = 1.0

        def renew(self) -> bool:
            Event().wait(0.2)
            return super().renew()

    renewer, held = Renewer(), [Slowly(1000) for _ in range(40)]
    for lease in held:
        renewer.add(lease)
    begun = monotonic()
    wait_until(lambda: all(lease.renewed for lease in held), within_s=10, what="all are renewed")
    assert monotonic() - begun < 4
    for lease in held:
        renewer.remove(lease)


def test_the_commands_accept_every_state_and_decision() -> None:
    """The command line lists them itself: it must start without importing Celery."""
    assert tuple(State) == leases._STATES
    assert tuple(Decision) == leases._DECISIONS


@pytest.mark.parametrize("order", ["guard first", "guard last"])
def test_a_project_s_own_base_class_sends_its_guarded_tasks_as_all_others(order: str) -> None:
    """Which adds the tenant to what it sends, whatever the way; in both orders of the bases."""
    sent: list[str] = []

    class Own(Task):  # type: ignore[type-arg] # not subscriptable before Celery 5.5
        abstract = True

        def delay_on_commit(self, *args: Any) -> None:
            sent.append(f"delay {self.name} {args}")

        def apply_async_on_commit(self, *args: Any, **options: Any) -> None:
            sent.append(f"apply {self.name} {args} {options}")

    bases = (IdempotentTask, Own) if order == "guard first" else (Own, IdempotentTask)
    app = Celery("shop", set_as_current=False)

    @app.task(base=type("Guarded", bases, {"abstract": True}), shared=False, name="charge")
    def charge(order: int) -> None:
        raise AssertionError(order)

    charge.delay_on_commit(7)
    charge.apply_async_on_commit((8,), countdown=3)
    assert sent == ["delay charge (7,)", "apply charge ((8,),) {'countdown': 3}"]


def test_a_guarded_task_is_sent_after_the_commit_as_others_of_django(monkeypatch: pytest.MonkeyPatch) -> None:
    """`DjangoTask` is the base class of those without one of their own; examples/django runs it in a transaction."""
    from django.db import transaction

    sent: list[Any] = []
    committed: list[Any] = []
    monkeypatch.setattr(transaction, "on_commit", committed.append)
    app = Celery("shop", set_as_current=False)

    @app.task(base=IdempotentTask, shared=False)
    def charge(order: int) -> None:
        raise AssertionError(order)

    monkeypatch.setattr(charge.__class__, "apply_async", lambda _, *given, **more: sent.append((given, more)))
    charge.delay_on_commit(7)
    charge.apply_async_on_commit((8,), countdown=3)
    assert not sent
    for send in committed:
        send()
    assert sent == [(((7,), {}), {}), (((8,),), {"countdown": 3})]
