"""What is on record of a job; values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import isfinite
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


#: The year 9999, in milliseconds since 1970.
_LAST_MS = 253_000_000_000_000


class Status(Enum):
    """Where a job is."""

    #: It has its scope, and is being sent.
    ACCEPTED = "accepted"
    #: It is on the broker, or waits for another attempt.
    QUEUED = "queued"
    #: A worker runs it, and renews its lease.
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    #: Its lease ran out. Its message may still come: then it runs, unless another job has the scope.
    LOST = "lost"
    #: It could not be sent.
    UNSENT = "unsent"
    #: Its message came when another job had the scope; it was not run.
    SUPERSEDED = "superseded"
    #: What the store has of it is no record, or names no state.
    UNREADABLE = "unreadable"

    @property
    def is_active(self) -> bool:
        """Whether a job in this state holds its scope."""
        return self in (Status.ACCEPTED, Status.QUEUED, Status.RUNNING)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run says that it is; whole numbers or fractions."""

    done: int | float | None = None
    total: int | float | None = None
    stage: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """What is on record of a job. Times are seconds since 1970, by the store's clock.

    None, and "" of texts, stand for what is not on record, or not as it should be.
    """

    id: str
    task: str
    #: As people know it; "" where the store had lost the record.
    scope: str
    #: LOST also when its lease ran out and nobody has written so yet.
    status: Status
    #: Grows by one with each job that the scope accepts, until the scope was left alone for WORKER_LEASE_KEPT.
    generation: int | None
    #: Runs that have begun.
    attempts: int | None
    created: float | None
    updated: float | None
    #: None while it has not ended.
    ended: float | None
    #: Seconds since it was accepted.
    age_s: float | None
    #: Seconds until its lease runs out unless it is renewed; 0 for one that holds nothing.
    held_for_s: float
    progress: Progress
    error_type: str
    error: str
    #: The job that has taken its scope; "" unless that made it lost or superseded.
    successor: str
    #: Digest of who submitted it, as given to `Jobs.submit(owner=...)`; "" if not given.
    submitter: str = ""

    @classmethod
    def from_record(cls, found: Mapping[str, str], now: float) -> Job:
        """The job that a record speaks of, at the moment `now` of the store's clock."""
        status = _status(found.get("status"))
        until = _seconds(found.get("until")) or 0
        remaining_s = max(until - now, 0) if status.is_active else 0
        if status.is_active and not remaining_s:
            status = Status.LOST
        created = _seconds(found.get("created"))
        return cls(
            id=found.get("id", ""),
            task=found.get("task", ""),
            scope=found.get("name", ""),
            status=status,
            generation=_whole(found.get("generation")),
            attempts=_whole(found.get("attempts", "0")),
            created=created,
            updated=_seconds(found.get("updated")) or created,
            ended=_seconds(found.get("ended")),
            age_s=None if created is None else max(now - created, 0),
            held_for_s=remaining_s,
            progress=Progress(_number(found.get("done")), _number(found.get("total")), found.get("stage", "")),
            error_type=found.get("error_type", ""),
            error=found.get("error", ""),
            successor=found.get("successor", ""),
            submitter=found.get("submitter", ""),
        )


@dataclass(frozen=True, slots=True)
class Accepted:
    """The answer to a submission: a job of its own, or the one that the same idempotency key was given before."""

    job: Job
    #: Whether the key came before, so that nothing was sent.
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The answer to a cancellation: the job will not begin; a run that has begun ends when it looks, or is killed."""

    job: Job
    #: Whether the workers could be told; without that only the record says it.
    workers_told: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something that was not done, for a scope had its job."""

    #: Seconds since 1970, by the store's clock.
    at: float
    #: `refused`: a submission; `superseded`: a message that came when another job had the scope.
    what: str
    scope: str
    #: The id that was not used, or the job that was not run.
    job: str
    #: The job that had the scope, and its status then.
    active: str
    active_status: str


@dataclass(frozen=True, slots=True)
class Saved:
    """Refused submissions, and what running them would have cost, in the currency of `Jobs(cost=...)`."""

    refused: int
    cost: float


@dataclass(frozen=True, slots=True)
class Audit:
    """What was refused in a tenant's name, newest first; and the sums, which reach further back."""

    refusals: Sequence[Refusal]
    total: Saved
    by_scope: Mapping[str, Saved]


def _status(text: str | None) -> Status:
    try:
        return Status(text)
    except ValueError:
        return Status.UNREADABLE


def _whole(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _number(text: str | None) -> int | float | None:
    whole = _whole(text)
    if text is None or whole is not None:
        return whole
    try:
        number = float(text)
    except ValueError:
        return None
    # no answer in JSON can hold another
    return number if isfinite(number) else None


def _seconds(milliseconds: str | None) -> float | None:
    whole = _whole(milliseconds)
    # beyond that no calendar of Python's goes
    return whole / 1000 if whole is not None and 0 <= whole < _LAST_MS else None
