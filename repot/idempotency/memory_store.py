"""A lease store in memory, for the tests of applications: the answers of a real store, with a clock that tests set.

store = MemoryLeaseStore()
with guarded_by(app, store):
    ...
    store.advance(60)  # a minute passes
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING

from repot.config import ExplicitSettings
from repot.idempotency.guard import Guard
from repot.idempotency.records import (
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
from repot.upstream.app_state import state_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from repot.idempotency.fingerprint import Fingerprint
    from repot.idempotency.records import Answer, Ending, LeaseRequest


@dataclass(frozen=True, slots=True)
class _Row:
    state: State
    request: LeaseRequest
    payload: str
    fencing_token: int
    runs: int
    unknown_outcomes: int
    replay: int
    started_at: float
    #: When a lease or a reservation expires, and when the row is deleted; None for never.
    expires_at: float
    deleted_at: float | None
    ending: Ending | None = None
    ended_at: float | None = None
    parked: bool = False


class MemoryLeaseStore:
    """The `LeaseStore` in the memory of this process; only `advance` moves its clock."""

    def __init__(self) -> None:
        """Start empty, at time 1000."""
        self._rows: dict[str, _Row] = {}
        self._now = 1000.0
        self._lock = Lock()

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self._now += seconds

    def keys(self) -> list[str]:
        """Return the keys of all records whose retention is not over."""
        with self._lock:
            return [key for key in list(self._rows) if self._row(key)]

    def acquire(self, fingerprint: Fingerprint, request: LeaseRequest) -> Answer:
        """Acquire the lease of a key for one run."""
        with self._lock:
            row = self._row(fingerprint.key)
            if row is None:
                return self._grant(fingerprint, request, None)
            if row.state is State.RUNNING and row.request.owner == request.owner:
                return Acquired(row.fencing_token, row.runs)
            if fingerprint.payload and row.payload and fingerprint.payload != row.payload:
                return Mismatch(row.request.task_id)
            return self._refusal(row, request) or self._park_or_grant(fingerprint, request, row)

    def renew(self, key: str, request: LeaseRequest) -> bool:
        """Extend the lease."""
        with self._lock:
            row = self._row(key)
            if row is None or not self._is_live(row) or row.request.owner != request.owner:
                return False
            expires_at = self._now + request.lease_s
            self._rows[key] = replace(row, expires_at=expires_at, deleted_at=expires_at + request.retention_s)
            return True

    def finish(self, key: str, owner: str, ending: Ending, mode: FinishMode = FinishMode.IN_LEASE) -> FinishResult:
        """End a lease, and record how the run ended."""
        with self._lock:
            row = self._row(key)
            if row is None or row.request.owner != owner:
                return FinishResult.LOST
            by_run = mode in (FinishMode.IN_LEASE, FinishMode.LATE)
            reopened = row.state is State.RELEASED and ending.outcome is not RunOutcome.RELEASED and by_run
            if row.state not in (State.RUNNING, State.UNKNOWN) and not reopened:
                return FinishResult.OK if row.state == State(ending.outcome) else FinishResult.LOST
            if mode is FinishMode.IN_LEASE and not self._is_live(row):
                return FinishResult.LATE
            if mode is FinishMode.OPERATOR and self._is_live(row):
                return FinishResult.LIVE
            self._rows[key] = replace(
                row,
                state=State(ending.outcome),
                ending=ending,
                ended_at=self._now,
                parked=False,
                expires_at=self._now + ending.hold_s,
                deleted_at=self._now + ending.hold_s + ending.retention_s,
                unknown_outcomes=row.unknown_outcomes + (ending.outcome is RunOutcome.UNKNOWN),
            )
            return FinishResult.OK

    def inspect(self, key: str) -> Record | None:
        """Return the record of a key; None if there is no such record."""
        with self._lock:
            row = self._row(key)
            return None if row is None else self._record(key, row)

    def _refusal(self, row: _Row, request: LeaseRequest) -> Answer | None:
        """Return why no run may start, other than an unknown outcome."""
        ending, first = row.ending, row.request.task_id
        if row.state is State.DONE and ending:
            return Done(first, ending.result, ending.error)
        if row.state is State.FAILED and ending and request.replay <= row.replay:
            return Failed(first, ending.error)
        if self._is_live(row):
            return Running(row.expires_at - self._now, first, row.request.worker)
        held_for = ending.held_for if ending else ""
        if row.state is State.RELEASED and row.expires_at > self._now and held_for not in ("", request.task_id):
            return Running(row.expires_at - self._now, first, row.request.worker)
        return None

    def _park_or_grant(self, fingerprint: Fingerprint, request: LeaseRequest, row: _Row) -> Answer:
        if row.state is State.RUNNING:
            row = replace(row, state=State.UNKNOWN, unknown_outcomes=row.unknown_outcomes + 1)
            self._rows[fingerprint.key] = row
        replayed = request.replay > row.replay
        if (
            row.state is State.UNKNOWN
            and not replayed
            and (request.parks or row.unknown_outcomes >= request.max_unknown_outcomes)
        ):
            self._rows[fingerprint.key] = replace(row, parked=True, deleted_at=None)
            return Parked(row.request.task_id, row.request.worker, row.started_at, row.unknown_outcomes, not row.parked)
        return self._grant(fingerprint, request, row)

    def _grant(self, fingerprint: Fingerprint, request: LeaseRequest, before: _Row | None) -> Acquired:
        fencing_token = max(before.fencing_token + 1 if before else 0, round(self._now * 1e6))
        runs = (before.runs if before else 0) + 1
        self._rows[fingerprint.key] = _Row(
            State.RUNNING,
            request,
            fingerprint.payload,
            fencing_token,
            runs,
            unknown_outcomes=before.unknown_outcomes if before else 0,
            replay=max(request.replay, before.replay if before else 0),
            started_at=self._now,
            expires_at=self._now + request.lease_s,
            deleted_at=self._now + request.lease_s + request.retention_s,
        )
        return Acquired(fencing_token, runs, before.state if before else None)

    def _row(self, key: str) -> _Row | None:
        row = self._rows.get(key)
        if row and row.deleted_at is not None and row.deleted_at <= self._now:
            del self._rows[key]
            return None
        return row

    def _is_live(self, row: _Row) -> bool:
        return row.state is State.RUNNING and row.expires_at > self._now

    def _record(self, key: str, row: _Row) -> Record:
        timed = row.state in (State.RUNNING, State.RELEASED)
        remaining_s = max(row.expires_at - self._now, 0) if timed else 0
        state = State.UNKNOWN if row.state is State.RUNNING and not remaining_s else row.state
        ending = row.ending
        return Record(
            key=key,
            state=state,
            owner=row.request.owner,
            fencing_token=row.fencing_token,
            task=row.request.task,
            task_id=row.request.task_id,
            worker=row.request.worker,
            runs=row.runs,
            unknown_outcomes=row.unknown_outcomes,
            replay=row.replay,
            started_at=row.started_at,
            ended_at=row.ended_at,
            remaining_s=remaining_s,
            parked=row.parked,
            has_result=bool(ending and ending.result is not None),
            error=ending.error if ending else "",
        )


@contextmanager
def guarded_by(app: Celery, store: MemoryLeaseStore | None = None) -> Iterator[Guard]:
    """Let an application's guarded tasks use a store in memory, a new one by default; restore its guard afterwards."""
    state = state_of(app)
    before = state.guard
    guard = Guard(store or MemoryLeaseStore(), ExplicitSettings())
    state.guard = guard
    try:
        yield guard
    finally:
        state.guard = before
