"""The values of a lease store: a request for a lease, the answer to it, and an idempotency record."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.idempotency.fingerprint import Fingerprint


#: The note of a run that has committed its effect (`Task.transaction`), and whose result is not stored yet.
COMMITTED = "committed"

#: What the note of a run begins with that raised Ignore, or replaced itself.
IGNORED = "ignored"

#: The note of a run whose outcome an operator has recorded (`repot leases`), without a result.
DECIDED = "decided by an operator"


class RunOutcome(StrEnum):
    """How a run ends."""

    #: It had its effect; the result is stored.
    DONE = "done"
    #: It failed permanently: every later run with this key fails in the same way.
    FAILED = "failed"
    #: It had no effect: the next run may start.
    RELEASED = "released"
    #: It was interrupted, and may or may not have had its effect.
    UNKNOWN = "unknown"


class State(StrEnum):
    """The state of an idempotency record; a running one becomes unknown when its lease expires."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    RELEASED = "released"
    UNKNOWN = "unknown"


class FinishMode(StrEnum):
    """Who ends a lease, and under which condition the store accepts it."""

    #: The run itself, while its lease is live.
    IN_LEASE = ""
    #: The run itself, also after its lease expired, unless another run has acquired the key.
    LATE = "late"
    #: The run itself, in the transaction of its effect, which may be committed once.
    COMMIT = "commit"
    #: An operator; not while the lease is live.
    OPERATOR = "operator"
    #: An operator, also while the lease is live.
    FORCE = "force"


class FinishResult(StrEnum):
    """The store's answer to the end of a lease."""

    OK = "ok"
    #: The lease had expired; no other run has acquired the key.
    LATE = "late"
    #: Another run has the key, or the record has ended or been deleted.
    LOST = "lost"
    #: The lease is live: only its owner may end it.
    LIVE = "live"


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """Who requests the lease of a key, and on what terms. Durations are seconds."""

    #: New for each request; proves ownership later.
    owner: str
    task: str
    task_id: str
    worker: str
    lease_s: float
    retention_s: float
    #: When an operator replayed the message, in milliseconds since 1970; 0 for never.
    replay: int = 0
    #: Whether it was replayed among others, without a decision about it: what waits for an operator goes on waiting.
    undecided: bool = False
    #: Whether an unknown outcome waits for an operator.
    parks: bool = False
    #: Unknown outcomes after which the key is parked in any case.
    max_unknown_outcomes: int = 3
    #: Owners of earlier requests for this message that the store did not answer: no run of theirs has begun, or will.
    unanswered: tuple[str, ...] = ()
    #: For how long an expired lease is left to its owner, which could not reach the store either; 0 as a rule.
    grace_s: float = 0


@dataclass(frozen=True, slots=True)
class Acquired:
    """The request got the lease. `after` is the state of the record before: None if there was no record."""

    fencing_token: int
    #: Runs of this key, this one included.
    runs: int
    after: State | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """An earlier run had its effect. `result` is its JSON text; None if it was not stored."""

    task_id: str
    result: str | None
    #: What the run stored beside its result.
    note: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """An earlier run failed permanently."""

    task_id: str
    error: str


@dataclass(frozen=True, slots=True)
class Running:
    """Another run holds the lease, for `remaining_s` seconds unless it renews it."""

    remaining_s: float
    task_id: str
    worker: str = ""


@dataclass(frozen=True, slots=True)
class Parked:
    """The outcome of an earlier run is unknown, and an operator has to decide; `first` on the first such answer."""

    task_id: str
    worker: str
    #: When that run started, in seconds since 1970 by the store's clock.
    started_at: float
    unknown_outcomes: int
    first: bool


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The key was used with another payload."""

    task_id: str


Answer = Acquired | Done | Failed | Running | Parked | Mismatch


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ends, and what the record keeps of it."""

    outcome: RunOutcome
    retention_s: float
    #: The result as JSON text; None if it is not stored.
    result: str | None = None
    error: str = ""
    #: How long a released key stays reserved for the task `held_for`, which waits for its retry.
    hold_s: float = 0
    held_for: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """An idempotency record. Instants are seconds since 1970 by the store's clock."""

    key: str
    state: State
    owner: str
    fencing_token: int
    task: str
    task_id: str
    worker: str
    runs: int
    unknown_outcomes: int
    replay: int
    started_at: float
    #: None until it has ended.
    ended_at: float | None
    #: Seconds until a live lease, or the reservation of a released key, expires; 0 if it has.
    remaining_s: float
    #: Whether an unknown outcome waits for an operator.
    parked: bool
    has_result: bool
    error: str

    @property
    def is_live(self) -> bool:
        """Whether a run holds the lease."""
        return self.state is State.RUNNING

    @property
    def has_unknown_outcome(self) -> bool:
        """Whether the last run ended without a known outcome."""
        return self.state is State.UNKNOWN


class LeaseStore(Protocol):
    """Stores idempotency records. Each method is safe to repeat after a lost answer.

    On Redis it is one round trip, and another one where it changes a record that it did not expect.

    Raises:
        StoreUnreachable: the store did not answer; it may have acted or not.
    """

    def acquire(self, fingerprint: Fingerprint, request: LeaseRequest) -> Answer:
        """Acquire the lease of a key for one run."""
        ...

    def renew(self, key: str, request: LeaseRequest) -> bool:
        """Extend the lease by `lease_s`; return False if it expired, or another run has the key."""
        ...

    def finish(self, key: str, owner: str, ending: Ending, mode: FinishMode = FinishMode.IN_LEASE) -> FinishResult:
        """End a lease, and record how the run ended."""
        ...

    def inspect(self, key: str) -> Record | None:
        """Return the record of a key; None if there is no such record."""
        ...


class RecordStore(LeaseStore, Protocol):
    """A lease store whose records people look at and decide on."""

    def records(self) -> Iterator[Record]:
        """Return all records; one that changes meanwhile may be missed."""
        ...

    def now(self) -> float:
        """Return the time by the store's clock, in seconds since 1970."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...
