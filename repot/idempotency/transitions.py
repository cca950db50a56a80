"""The rules of idempotency records, without a store: what becomes of one when a lease is acquired, renewed or ended.

`acquiring`, `renewing` and `finishing` make the rules (`repot.store.rules`) that every store applies. Instants are
seconds since 1970 by the store's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from repot.idempotency.records import (
    COMMITTED,
    IGNORED,
    Acquired,
    Done,
    Failed,
    FinishMode,
    FinishResult,
    Mismatch,
    Parked,
    Record,
    Running,
    RunOutcome,
    State,
)

if TYPE_CHECKING:
    from repot.idempotency.fingerprint import Fingerprint
    from repot.idempotency.records import Answer, Ending, LeaseRequest
    from repot.store.rules import Rule


# no rule changes one; each guarded run makes three, and a frozen one takes some 3 us longer to make
@dataclass(slots=True)
class StoredRecord:
    """An idempotency record as a store keeps it; `Record` describes the fields that both have."""

    key: str
    state: State
    owner: str
    payload: str
    task: str
    task_id: str
    worker: str
    fencing_token: int
    runs: int
    unknown_outcomes: int
    replay: int
    started_at: float
    #: When the lease, or the reservation of a released key, expires.
    expires_at: float
    #: When the record is to be deleted; None while it waits for an operator.
    deleted_at: float | None
    ended_at: float | None = None
    parked: bool = False
    #: The result as JSON text; None if it is not stored.
    result: str | None = None
    error: str = ""
    #: The task for which a released key is reserved; empty for none.
    held_for: str = ""

    def is_live(self, now: float) -> bool:
        """Return whether a run holds the lease."""
        return self.state is State.RUNNING and self.expires_at > now

    def is_kept(self, now: float) -> bool:
        """Return whether its retention is not over."""
        return self.deleted_at is None or self.deleted_at > now

    def as_record(self, now: float) -> Record:
        """Return the record for people."""
        timed = self.state in (State.RUNNING, State.RELEASED)
        remaining_s = max(self.expires_at - now, 0) if timed else 0
        return Record(
            key=self.key,
            state=State.UNKNOWN if self.state is State.RUNNING and not remaining_s else self.state,
            owner=self.owner,
            fencing_token=self.fencing_token,
            task=self.task,
            task_id=self.task_id,
            worker=self.worker,
            runs=self.runs,
            unknown_outcomes=self.unknown_outcomes,
            replay=self.replay,
            started_at=self.started_at,
            ended_at=self.ended_at,
            remaining_s=remaining_s,
            parked=self.parked,
            has_result=self.result is not None,
            error=self.error,
        )


def acquiring(fingerprint: Fingerprint, request: LeaseRequest) -> Rule[StoredRecord, Answer]:
    """Return the rule by which a run acquires the lease of a key."""
    return lambda found, now: acquire(found, fingerprint, request, now)


def renewing(request: LeaseRequest) -> Rule[StoredRecord, bool]:
    """Return the rule by which a run extends its lease; its answer is whether it has it."""

    def rule(found: StoredRecord | None, now: float) -> tuple[StoredRecord | None, bool]:
        renewed = renew(found, request, now)
        return renewed, renewed is not None

    return rule


def finishing(owner: str, ending: Ending, mode: FinishMode) -> Rule[StoredRecord, FinishResult]:
    """Return the rule by which a lease ends in its owner's name."""
    return lambda found, now: finish(found, owner, ending, mode, now)


def acquire(
    found: StoredRecord | None, fingerprint: Fingerprint, request: LeaseRequest, now: float
) -> tuple[StoredRecord | None, Answer]:
    """Return the record to store, None to leave it as it is, and the answer to a request for the lease of its key."""
    if found is None:
        return _grant(None, fingerprint, request, now)
    if found.state is State.RUNNING and found.owner == request.owner:
        # the answer to the first attempt was lost
        return None, Acquired(found.fencing_token, found.runs)
    if fingerprint.payload and found.payload and fingerprint.payload != found.payload:
        return None, Mismatch(found.task_id)
    if found.owner in request.unanswered and found.state in (State.RUNNING, State.UNKNOWN):
        found = _never_begun(found)
    refusal = _refusal(found, request, now)
    if refusal:
        return None, refusal
    if found.state is State.RUNNING:
        # the lease expired: the run may or may not have had its effect
        found = replace(found, state=State.UNKNOWN, unknown_outcomes=found.unknown_outcomes + 1)
    waits = request.parks or found.unknown_outcomes >= request.max_unknown_outcomes
    if found.state is State.UNKNOWN and (request.undecided or request.replay <= found.replay) and waits:
        # for an operator, without a time limit
        parked = replace(found, parked=True, deleted_at=None)
        return parked, Parked(
            found.task_id, found.worker, found.started_at, found.unknown_outcomes, first=not found.parked
        )
    return _grant(found, fingerprint, request, now)


def renew(found: StoredRecord | None, request: LeaseRequest, now: float) -> StoredRecord | None:
    """Return the record to store; None if the lease is lost. One that expired, and that no other run has, holds on."""
    if found is None or found.state is not State.RUNNING or found.owner != request.owner:
        return None
    expires_at = now + request.lease_s
    return replace(found, expires_at=expires_at, deleted_at=expires_at + request.retention_s)


def finish(
    found: StoredRecord | None, owner: str, ending: Ending, mode: FinishMode, now: float
) -> tuple[StoredRecord | None, FinishResult]:
    """Return the record to store, None to leave it as it is, and the answer to the end of a lease."""
    if found is None or found.owner != owner:
        return None, FinishResult.LOST
    if mode is FinishMode.COMMIT and found.state is State.DONE:
        # an earlier commit whose answer was lost, or an operator's word
        return None, FinishResult.LOST
    by_run = mode in (FinishMode.IN_LEASE, FinishMode.LATE, FinishMode.COMMIT)
    # an operator released the key, but no other run has acquired it: the run knows its own outcome better
    reopened = found.state is State.RELEASED and ending.outcome is not RunOutcome.RELEASED and by_run
    # its effect was committed before it returned a result, or replaced itself
    adds = found.error == COMMITTED or ending.error.startswith(IGNORED)
    completed = found.state is State.DONE and adds and ending.outcome is RunOutcome.DONE and by_run
    if found.state not in (State.RUNNING, State.UNKNOWN) and not reopened and not completed:
        # the answer to the first attempt was lost
        return None, FinishResult.OK if found.state == State(ending.outcome) else FinishResult.LOST
    if mode is FinishMode.IN_LEASE and not found.is_live(now) and not completed:
        return None, FinishResult.LATE
    if mode is FinishMode.OPERATOR and found.is_live(now):
        return None, FinishResult.LIVE
    ended = replace(
        found,
        state=State(ending.outcome),
        ended_at=now,
        parked=False,
        result=ending.result,
        error=ending.error,
        held_for=ending.held_for,
        expires_at=now + ending.hold_s,
        deleted_at=now + ending.hold_s + ending.retention_s,
        unknown_outcomes=found.unknown_outcomes + (ending.outcome is RunOutcome.UNKNOWN),
    )
    return ended, FinishResult.OK


def _refusal(found: StoredRecord, request: LeaseRequest, now: float) -> Answer | None:
    """Return why no run may start, other than an unknown outcome."""
    if found.state is State.DONE:
        return Done(found.task_id, found.result, found.error)
    if found.state is State.FAILED and request.replay <= found.replay:
        return Failed(found.task_id, found.error)
    reserved = found.state is State.RELEASED and found.held_for not in ("", request.task_id)
    if (found.state is State.RUNNING or reserved) and found.expires_at > now:
        return Running(found.expires_at - now, found.task_id, found.worker)
    if found.state is State.RUNNING and request.grace_s > 0:
        # its owner may live, and send its renewal or its outcome as soon as it can
        return Running(request.grace_s, found.task_id, found.worker)
    return None


def _never_begun(found: StoredRecord) -> StoredRecord:
    """Return the record of a lease that was granted, and whose owner got no answer, as if its run had released it."""
    counted = found.state is State.UNKNOWN
    return replace(
        found,
        state=State.RELEASED,
        held_for="",
        runs=found.runs - 1,
        unknown_outcomes=found.unknown_outcomes - counted,
    )


def _grant(
    before: StoredRecord | None, fingerprint: Fingerprint, request: LeaseRequest, now: float
) -> tuple[StoredRecord, Acquired]:
    # never below the clock: a store that lost its last writes in a failover does not issue a fencing token twice
    fencing_token = max(before.fencing_token + 1 if before else 0, round(now * 1e6))
    granted = StoredRecord(
        key=fingerprint.key,
        state=State.RUNNING,
        owner=request.owner,
        payload=fingerprint.payload,
        task=request.task,
        task_id=request.task_id,
        worker=request.worker,
        fencing_token=fencing_token,
        runs=(before.runs if before else 0) + 1,
        unknown_outcomes=before.unknown_outcomes if before else 0,
        replay=max(request.replay, before.replay if before else 0),
        started_at=now,
        expires_at=now + request.lease_s,
        deleted_at=now + request.lease_s + request.retention_s,
    )
    return granted, Acquired(fencing_token, granted.runs, before.state if before else None)
