"""A lease store in memory, for the tests of applications: the same answers, without a Redis and at any time you like.

store = MemoryStore()
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
from repot.idempotency.claims import (
    Claimed,
    Done,
    Failed,
    Mismatch,
    Outcome,
    Parked,
    Record,
    Running,
    State,
    Verdict,
)
from repot.idempotency.guard import Guard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from repot.idempotency.claims import Answer, Claimant, Ending
    from repot.idempotency.fingerprint import Fingerprint


@dataclass(frozen=True, slots=True)
class _Row:
    state: State
    claimant: Claimant
    payload: str
    fence: int
    runs: int
    doubts: int
    replay: int
    began: float
    #: When a lease or a hold runs out, and when the row is forgotten; None for never.
    until: float
    forgotten: float | None
    ending: Ending | None = None
    ended: float | None = None
    parked: bool = False


class MemoryStore:
    """The `Store` in the memory of this process; its clock stands still until told to advance."""

    def __init__(self) -> None:
        """Begin empty, at the time 1000."""
        self._rows: dict[str, _Row] = {}
        self._now = 1000.0
        self._lock = Lock()

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds

    def keys(self) -> list[str]:
        """All that was ever claimed and is not forgotten yet."""
        with self._lock:
            return [key for key in list(self._rows) if self._row(key)]

    def claim(self, fingerprint: Fingerprint, claimant: Claimant) -> Answer:
        """Claim a key for a run."""
        with self._lock:
            row = self._row(fingerprint.key)
            if row is None:
                return self._take(fingerprint, claimant, None)
            if row.state is State.RUNNING and row.claimant.owner == claimant.owner:
                return Claimed(row.fence, row.runs)
            if fingerprint.payload and row.payload and fingerprint.payload != row.payload:
                return Mismatch(row.claimant.task_id)
            return self._answer(row, claimant) or self._answer_to_doubt(fingerprint, claimant, row)

    def renew(self, key: str, claimant: Claimant) -> bool:
        """Hold it for longer."""
        with self._lock:
            row = self._row(key)
            if row is None or not self._is_live(row) or row.claimant.owner != claimant.owner:
                return False
            until = self._now + claimant.lease_s
            self._rows[key] = replace(row, until=until, forgotten=until + claimant.kept_s)
            return True

    def finish(self, key: str, owner: str, ending: Ending, how: str = "") -> Verdict:
        """End a claim."""
        with self._lock:
            row = self._row(key)
            if row is None or row.claimant.owner != owner:
                return Verdict.LOST
            let_go = row.state is State.RELEASED and ending.outcome is not Outcome.RELEASED and how in ("", "late")
            if row.state not in (State.RUNNING, State.UNKNOWN) and not let_go:
                return Verdict.OK if row.state.value == ending.outcome.value else Verdict.LOST
            if not how and not self._is_live(row):
                return Verdict.LATE
            if how == "person" and self._is_live(row):
                return Verdict.LIVE
            self._rows[key] = replace(
                row,
                state=State(ending.outcome.value),
                ending=ending,
                ended=self._now,
                parked=False,
                until=self._now + ending.hold_s,
                forgotten=self._now + ending.hold_s + ending.kept_s,
                doubts=row.doubts + (ending.outcome is Outcome.UNKNOWN),
            )
            return Verdict.OK

    def inspect(self, key: str) -> Record | None:
        """What is on record of a key."""
        with self._lock:
            row = self._row(key)
            return None if row is None else self._record(key, row)

    def _answer(self, row: _Row, claimant: Claimant) -> Answer | None:
        """What stands against a run whatever is in doubt."""
        ending, first = row.ending, row.claimant.task_id
        if row.state is State.DONE and ending:
            return Done(first, ending.result, ending.error)
        if row.state is State.FAILED and ending and claimant.replay <= row.replay:
            return Failed(first, ending.error)
        if self._is_live(row):
            return Running(row.until - self._now, first, row.claimant.worker)
        held_for = ending.held_for if ending else ""
        if row.state is State.RELEASED and row.until > self._now and held_for not in ("", claimant.task_id):
            return Running(row.until - self._now, first, row.claimant.worker)
        return None

    def _answer_to_doubt(self, fingerprint: Fingerprint, claimant: Claimant, row: _Row) -> Answer:
        if row.state is State.RUNNING:
            row = replace(row, state=State.UNKNOWN, doubts=row.doubts + 1)
            self._rows[fingerprint.key] = row
        asked = claimant.replay > row.replay
        if row.state is State.UNKNOWN and not asked and (claimant.parks or row.doubts >= claimant.most_doubts):
            self._rows[fingerprint.key] = replace(row, parked=True, forgotten=None)
            return Parked(row.claimant.task_id, row.claimant.worker, row.began, row.doubts, not row.parked)
        return self._take(fingerprint, claimant, row)

    def _take(self, fingerprint: Fingerprint, claimant: Claimant, before: _Row | None) -> Claimed:
        fence = max(before.fence + 1 if before else 0, round(self._now * 1e6))
        runs = (before.runs if before else 0) + 1
        self._rows[fingerprint.key] = _Row(
            State.RUNNING,
            claimant,
            fingerprint.payload,
            fence,
            runs,
            doubts=before.doubts if before else 0,
            replay=max(claimant.replay, before.replay if before else 0),
            began=self._now,
            until=self._now + claimant.lease_s,
            forgotten=self._now + claimant.lease_s + claimant.kept_s,
        )
        return Claimed(fence, runs, before.state if before else None)

    def _row(self, key: str) -> _Row | None:
        row = self._rows.get(key)
        if row and row.forgotten is not None and row.forgotten <= self._now:
            del self._rows[key]
            return None
        return row

    def _is_live(self, row: _Row) -> bool:
        return row.state is State.RUNNING and row.until > self._now

    def _record(self, key: str, row: _Row) -> Record:
        held = row.state in (State.RUNNING, State.RELEASED)
        remaining_s = max(row.until - self._now, 0) if held else 0
        state = State.UNKNOWN if row.state is State.RUNNING and not remaining_s else row.state
        ending = row.ending
        return Record(
            key=key,
            state=state,
            owner=row.claimant.owner,
            fence=row.fence,
            task=row.claimant.task,
            task_id=row.claimant.task_id,
            worker=row.claimant.worker,
            runs=row.runs,
            doubts=row.doubts,
            replay=row.replay,
            began=row.began,
            ended=row.ended,
            remaining_s=remaining_s,
            parked=row.parked,
            has_result=bool(ending and ending.result is not None),
            error=ending.error if ending else "",
        )


@contextmanager
def guarded_by(app: Celery, store: MemoryStore | None = None) -> Iterator[Guard]:
    """Let an application's guarded tasks use a store in memory, a new one if none is given; put back what was there."""
    before = getattr(app, "repot_guard", None)
    guard = Guard(store or MemoryStore(), ExplicitSettings())
    app.repot_guard = guard  # type: ignore[attr-defined]
    try:
        yield guard
    finally:
        app.repot_guard = before  # type: ignore[attr-defined]
