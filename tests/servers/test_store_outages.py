"""An outage of the lease store that outlasts leases: a run that lives keeps its key, also if others ask first."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from repot.config import ExplicitSettings
from repot.errors import StoreUnreachable
from repot.idempotency import PARK, RERUN, Guard, Policy
from repot.idempotency.contact import Contact
from repot.idempotency.fingerprint import Fingerprint
from repot.idempotency.guard import Lease
from repot.idempotency.records import Done, Running, State
from repot.idempotency.stores import open_store
from repot.waiting import wait_until
from support.lost_answers import LosingLink
from support.servers import migrated
from support.shop import SHORT_LEASE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.idempotency.policy import OnUnknown
    from repot.idempotency.records import Answer

STORES = ["redis", "postgresql", "mariadb"]


class Process:
    """What a process of a worker has: a guard, and a link to the store of its own."""

    def __init__(self, url: str, port: int, prefix: str, stack: ExitStack) -> None:
        self._stack = stack
        self.link = stack.enter_context(LosingLink(port))
        there = url.replace(f":{port}", f":{self.link.port}")
        settings = ExplicitSettings(lease_store=there, lease_prefix=prefix, lease=SHORT_LEASE_S)
        store = stack.enter_context(closing(open_store(settings)))
        self.guard = Guard(store, settings, contact=Contact(SHORT_LEASE_S))

    def acquire(self, key: Fingerprint, policy: Policy = Policy()) -> Lease | Answer:  # noqa: B008 - frozen
        """Ask for the lease of a key."""
        found = self.guard.acquire(key, policy, task="t", task_id=str(uuid4()))
        if isinstance(found, Lease):
            # the thread that renews outlives the test
            self._stack.callback(self.guard.abandon, found)
        return found

    def lose(self) -> None:
        """Cut the link."""
        self._cut = self.link.cut()
        self._cut.__enter__()

    def find(self) -> None:
        """Open the link again."""
        self._cut.__exit__(None, None, None)


class Processes:
    """Two of them, and what is on record."""

    def __init__(self, url: str, port: int, stack: ExitStack) -> None:
        prefix = f"test-{uuid4()}"
        self.first, self.other = (Process(url, port, prefix, stack) for _ in range(2))
        settings = ExplicitSettings(lease_store=url, lease_prefix=prefix)
        self._store = stack.enter_context(closing(open_store(settings)))

    def miss_the_expiry(self, key: Fingerprint, policy: Policy = Policy()) -> None:  # noqa: B008 - frozen
        """Let the other process miss the expiry of a key's lease: it loses the store, gets no answer, and finds it."""
        self.other.lose()
        self.await_expiry(key)
        with pytest.raises(StoreUnreachable):
            self.other.acquire(key, policy)
        self.other.find()

    def await_expiry(self, key: Fingerprint) -> None:
        """Wait until the lease of a key has expired."""
        wait_until(lambda: self.state_of(key) is State.UNKNOWN, within_s=30, what="the lease expires", poll_s=0.05)

    def state_of(self, key: Fingerprint) -> State:
        """Return the state on record."""
        found = self._store.inspect(key.key)
        assert found is not None
        return found.state


@pytest.fixture
def two(request: pytest.FixtureRequest) -> Iterator[Processes]:
    """Two processes with one store."""
    leases = migrated(request.getfixturevalue(request.param))
    with ExitStack() as stack:
        yield Processes(leases.url, leases.port, stack)


@pytest.fixture
def key() -> Fingerprint:
    """A key of this test alone."""
    return Fingerprint(uuid4().hex * 2)


@pytest.mark.promise("postgresql-rerun")
@pytest.mark.parametrize("on_unknown", [RERUN, PARK])
@pytest.mark.parametrize("two", STORES, indirect=True)
def test_an_effect_whose_outcome_the_store_could_not_take_is_not_repeated(
    two: Processes, key: Fingerprint, on_unknown: OnUnknown
) -> None:
    """A backlog that kept asking found the expired lease before the worker had sent the outcome again."""
    policy = Policy(on_unknown=on_unknown)
    lease = two.first.acquire(key, policy)
    assert isinstance(lease, Lease)
    two.first.lose()
    two.first.guard.finish(lease, two.first.guard.done(policy, "its result"))
    two.miss_the_expiry(key, policy)
    # the first time that the store answers, and later
    for _ in range(2):
        waits = two.other.acquire(key, policy)
        assert isinstance(waits, Running)
        assert 0 < waits.remaining_s <= SHORT_LEASE_S + 1
    two.first.find()
    wait_until(lambda: two.state_of(key) is State.DONE, within_s=30, what="the outcome is recorded")
    assert isinstance(two.other.acquire(key, policy), Done)


@pytest.mark.parametrize("two", STORES, indirect=True)
def test_a_run_that_outlives_an_outage_renews_its_lease(two: Processes, key: Fingerprint) -> None:
    """It could not, so a task of many minutes ran again beside itself after an outage of the store."""
    lease = two.first.acquire(key)
    assert isinstance(lease, Lease)
    for one in (two.first, two.other):
        one.lose()
    two.await_expiry(key)
    for one in (two.first, two.other):
        one.find()
    wait_until(lambda: two.state_of(key) is State.RUNNING, within_s=30, what="the lease is renewed", poll_s=0.05)
    wait_until(lambda: lease.is_held, within_s=5, what="its owner has the answer")
    assert isinstance(two.other.acquire(key), Running)
    two.first.guard.finish(lease, two.first.guard.done(Policy(), 1))
    assert two.state_of(key) is State.DONE


@pytest.mark.parametrize("two", ["redis", "postgresql"], indirect=True)
def test_a_run_that_never_began_parks_no_other_message_of_its_key(two: Processes, key: Fingerprint) -> None:
    """Its lease was granted, and the answer lost: its process, which lives, releases it when the store is back."""
    policy = Policy(on_unknown=PARK)
    # afterwards the server has the script, and the next request does what is asked
    warm = two.first.acquire(Fingerprint(uuid4().hex))
    assert isinstance(warm, Lease)
    two.first.guard.abandon(warm)
    with two.first.link.losing():
        with pytest.raises(StoreUnreachable):
            two.first.acquire(key, policy)
        two.miss_the_expiry(key, policy)
        assert isinstance(two.other.acquire(key, policy), Running)
    wait_until(lambda: two.state_of(key) is State.RELEASED, within_s=30, what="the lease is released")
    assert isinstance(two.other.acquire(key, policy), Lease)


@pytest.mark.parametrize("two", STORES, indirect=True)
def test_who_died_in_an_outage_is_missed_a_lease_after_it(two: Processes, key: Fingerprint) -> None:
    lease = two.first.acquire(key)
    assert isinstance(lease, Lease)
    two.first.guard.abandon(lease)
    two.miss_the_expiry(key)
    answers: list[Lease | Answer] = []

    def has_it() -> bool:
        answers.append(two.other.acquire(key))
        return isinstance(answers[-1], Lease)

    wait_until(has_it, within_s=30, what="the key is taken over", poll_s=0.1)
    assert isinstance(answers[0], Running)


@pytest.mark.parametrize("two", ["redis"], indirect=True)
def test_without_an_outage_who_died_is_missed_at_once(two: Processes, key: Fingerprint) -> None:
    lease = two.first.acquire(key)
    assert isinstance(lease, Lease)
    two.first.guard.abandon(lease)
    two.await_expiry(key)
    assert isinstance(two.other.acquire(key), Lease)
