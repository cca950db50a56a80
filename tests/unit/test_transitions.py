"""The rules of idempotency records, one by one: who may renew and end a lease, and when."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from repot.config import ExplicitSettings
from repot.idempotency import transitions
from repot.idempotency.database_store import DatabaseLeaseStore
from repot.idempotency.fingerprint import Fingerprint
from repot.idempotency.guard import Guard, Lease
from repot.idempotency.memory_store import MemoryLeaseStore
from repot.idempotency.policy import RERUN, Policy
from repot.idempotency.records import Acquired, Ending, FinishMode, FinishResult, RunOutcome
from support.databases import with_tables
from support.leases import lease_request

if TYPE_CHECKING:
    from repot.idempotency.transitions import StoredRecord
    from support.databases import FileDatabase

KEY, NOW, LEASE_S = Fingerprint("k" * 64, "p" * 64), 1000.0, 60.0
OURS, THEIRS = (lease_request(lease_s=LEASE_S) for _ in range(2))
DONE = Ending(RunOutcome.DONE, 600.0)


def held() -> StoredRecord:
    record, answer = transitions.acquire(None, KEY, OURS, NOW)
    assert record is not None
    assert isinstance(answer, Acquired)
    return record


def test_its_owner_alone_renews_a_lease_also_one_that_expired_and_that_nothing_became_of() -> None:
    renewed = transitions.renew(held(), OURS, NOW + LEASE_S - 1)
    assert renewed is not None
    assert renewed.expires_at == NOW + 2 * LEASE_S - 1
    assert transitions.renew(held(), THEIRS, NOW + 1) is None
    late = transitions.renew(held(), OURS, NOW + LEASE_S + 1)
    assert late is not None
    assert late.expires_at == NOW + 2 * LEASE_S + 1
    assert transitions.renew(None, OURS, NOW) is None
    for request in (THEIRS, replace(THEIRS, parks=True)):
        taken, _ = transitions.acquire(held(), KEY, request, NOW + LEASE_S)
        assert transitions.renew(taken, OURS, NOW + LEASE_S) is None


def test_a_run_that_ends_after_its_lease_is_told_so() -> None:
    assert transitions.finish(held(), OURS.owner, DONE, FinishMode.IN_LEASE, NOW + LEASE_S) == (None, FinishResult.LATE)
    changed, answer = transitions.finish(held(), OURS.owner, DONE, FinishMode.LATE, NOW + LEASE_S)
    assert (answer, changed is not None) == (FinishResult.OK, True)
    assert transitions.finish(held(), THEIRS.owner, DONE, FinishMode.LATE, NOW) == (None, FinishResult.LOST)


def test_a_lease_that_has_just_expired_goes_to_the_next_run_with_a_larger_token() -> None:
    assert not isinstance(transitions.acquire(held(), KEY, THEIRS, NOW + LEASE_S - 0.001)[1], Acquired)
    changed, answer = transitions.acquire(held(), KEY, THEIRS, NOW + LEASE_S)
    assert isinstance(answer, Acquired)
    assert changed is not None
    assert answer.fencing_token > held().fencing_token
    assert (changed.unknown_outcomes, answer.runs) == (1, 2)
    # also where the clock went back
    early, answer = transitions.acquire(replace(held(), expires_at=0.0), KEY, THEIRS, NOW - 500)
    assert isinstance(answer, Acquired)
    assert early is not None
    assert answer.fencing_token == held().fencing_token + 1


def test_a_store_in_a_database_renews_its_owner_s_lease_alone(sqlite: FileDatabase) -> None:
    with closing(DatabaseLeaseStore(ExplicitSettings(lease_store=with_tables(sqlite).url))) as store:
        assert isinstance(store.acquire(KEY, OURS), Acquired)
        assert (store.renew(KEY.key, THEIRS), store.renew(KEY.key, OURS)) == (False, True)


class Renewals:
    """What is renewed now."""

    def __init__(self) -> None:
        self.leases: list[Any] = []
        self.later: list[Any] = []

    def add(self, lease: Any) -> None:
        self.leases.append(lease)

    def remove(self, lease: Any) -> None:
        self.leases.remove(lease)

    def send_later(self, send: Any, _every_s: float) -> None:
        self.later.append(send)


def test_a_lease_is_renewed_from_its_acquisition_to_its_end() -> None:
    renewals = Renewals()
    guard = Guard(MemoryLeaseStore(), ExplicitSettings(), renewals)  # type: ignore[arg-type]
    policy = Policy(on_unknown=RERUN)
    lease = guard.acquire(KEY, policy, task="shop.charge", task_id="1")
    assert isinstance(lease, Lease)
    assert [lease] == renewals.leases
    assert lease.interval_s * 3 == guard.settings.lease
    guard.finish(lease, guard.done(policy, 1))
    assert renewals.leases == []
    other = guard.acquire(Fingerprint("j" * 64, ""), policy, task="shop.charge", task_id="2")
    assert isinstance(other, Lease)
    guard.give_back(other)
    # in the background: the task never started, and waits for nothing
    assert (renewals.leases, len(renewals.later)) == ([], 1)
    assert FinishResult.OK is renewals.later[0]()
