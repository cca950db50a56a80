"""The values of a job store: a job, its progress, and the audit of refusals."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


#: The year 9999, in milliseconds since 1970.
_LAST_MS = 253_000_000_000_000


class Status(StrEnum):
    """The status of a job."""

    #: It holds its scope, and is being sent.
    ACCEPTED = "accepted"
    #: It is on the broker, or waits for its retry.
    QUEUED = "queued"
    #: A worker runs it, and renews its lease.
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    #: Its lease expired. If its message is delivered later, it runs, unless another job holds the scope.
    LOST = "lost"
    #: It could not be sent.
    UNSENT = "unsent"
    #: Its message was delivered while another job held the scope; it was not run.
    SUPERSEDED = "superseded"
    #: The value in the store is not a job record, or has no valid status.
    UNREADABLE = "unreadable"

    @property
    def is_active(self) -> bool:
        """Whether a job in this state holds its scope."""
        return self in (Status.ACCEPTED, Status.QUEUED, Status.RUNNING)


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The progress that a run reports; integers or fractions."""

    done: int | float | None = None
    total: int | float | None = None
    stage: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """The record of a job. Instants are seconds since 1970, by the store's clock.

    None, or "" for a string, means that the record lacks the value, or holds an invalid one.
    """

    id: str
    task: str
    #: The scope as it was given; "" if the store had lost the record.
    scope: str
    #: LOST as soon as the lease has expired, also while the record still has another status.
    status: Status
    #: Number of the job in its scope; starts again after WORKER_IDEMPOTENCY_RETENTION without a job.
    generation: int | None
    #: Runs that have started.
    attempts: int | None
    created_at: float | None
    updated_at: float | None
    #: None until it has ended.
    ended_at: float | None
    #: Seconds since it was accepted.
    age_s: float | None
    #: Seconds until its lease expires, unless it is renewed; 0 if it holds no scope.
    lease_remaining_s: float
    progress: JobProgress
    error_type: str
    error: str
    #: The job that took over its scope, if that made it lost or superseded; else "".
    successor: str
    #: Digest of the owner given to `Jobs.submit(owner=...)`; "" if not given.
    submitter: str = ""

    @classmethod
    def from_record(cls, record: Mapping[str, str], now: float) -> Job:
        """Return the job of a record, at the time `now` of the store's clock."""
        status = _status(record.get("status"))
        expires_at = _seconds(record.get("expires_at")) or 0
        remaining_s = max(expires_at - now, 0) if status.is_active else 0
        if status.is_active and not remaining_s:
            status = Status.LOST
        created_at = _seconds(record.get("created_at"))
        return cls(
            id=record.get("id", ""),
            task=record.get("task", ""),
            scope=record.get("name", ""),
            status=status,
            generation=_whole(record.get("generation")),
            attempts=_whole(record.get("attempts", "0")),
            created_at=created_at,
            updated_at=_seconds(record.get("updated_at")) or created_at,
            ended_at=_seconds(record.get("ended_at")),
            age_s=None if created_at is None else max(now - created_at, 0),
            lease_remaining_s=remaining_s,
            progress=JobProgress(_number(record.get("done")), _number(record.get("total")), record.get("stage", "")),
            error_type=record.get("error_type", ""),
            error=record.get("error", ""),
            successor=record.get("successor", ""),
            submitter=record.get("submitter", ""),
        )


@dataclass(frozen=True, slots=True)
class Accepted:
    """The answer to a submission: a new job, or the earlier job with the same idempotency key."""

    job: Job
    #: Whether the key was used before, so nothing was sent.
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The answer to a cancellation: the job will not start; a started run ends when it checks, or is killed."""

    job: Job
    #: Whether the workers were notified; if not, only the record says that the job is cancelled.
    workers_notified: bool


class RefusalKind(StrEnum):
    """What was refused."""

    #: A submission.
    REFUSED = "refused"
    #: A message that was delivered while another job held the scope.
    SUPERSEDED = "superseded"
    #: The entry cannot be read.
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A submission or a run that was refused because another job held the scope."""

    #: Seconds since 1970, by the store's clock.
    refused_at: float
    #: A `RefusalKind`.
    kind: str
    scope: str
    #: The id that was not used, or the job that was not run.
    job_id: str
    #: The job that held the scope, and its status at that time.
    active_job_id: str
    active_status: str


@dataclass(frozen=True, slots=True)
class Savings:
    """The number of refused submissions, and their cost, in the currency of `Jobs(cost=...)`."""

    refused: int
    cost: float


@dataclass(frozen=True, slots=True)
class Audit:
    """The refusals of a tenant, newest first; and the sums, which reach further back."""

    refusals: Sequence[Refusal]
    total: Savings
    by_scope: Mapping[str, Savings]


def _status(text: str | None) -> Status:
    try:
        return Status(text or "")
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
    # JSON has no other numbers
    return number if isfinite(number) else None


def _seconds(milliseconds: str | None) -> float | None:
    whole = _whole(milliseconds)
    # Python's datetime ends there
    return whole / 1000 if whole is not None and 0 <= whole < _LAST_MS else None
