"""What is on record of a job; values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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

    @property
    def is_active(self) -> bool:
        """Whether a job in this state holds its scope."""
        return self in (Status.ACCEPTED, Status.QUEUED, Status.RUNNING)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run says that it is."""

    done: int | None = None
    total: int | None = None
    stage: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """What is on record of a job. Times are seconds since 1970, by the store's clock."""

    id: str
    task: str
    #: As people know it; "" where the store had lost the record.
    scope: str
    #: LOST also when its lease ran out and nobody has written so yet.
    status: Status
    #: Grows by one with each job that the scope accepts, until the scope was left alone for WORKER_LEASE_KEPT.
    generation: int
    #: Runs that have begun.
    attempts: int
    created: float
    updated: float
    #: None while it has not ended.
    ended: float | None
    #: Seconds since it was accepted.
    age_s: float
    #: Seconds until its lease runs out unless it is renewed; 0 for one that holds nothing.
    held_for_s: float
    progress: Progress
    error_type: str
    error: str
    #: The job that has taken its scope; "" unless that made it lost or superseded.
    successor: str

    @classmethod
    def from_record(cls, found: Mapping[str, str], now: float) -> Job:
        """The job that a record speaks of, at the moment `now` of the store's clock."""
        status = Status(found["status"])
        remaining_s = int(found.get("until", 0)) / 1000 - now if status.is_active else 0
        if status.is_active and remaining_s <= 0:
            status = Status.LOST
        created = int(found["created"]) / 1000
        return cls(
            id=found["id"],
            task=found["task"],
            scope=found["name"],
            status=status,
            generation=int(found["generation"]),
            attempts=int(found.get("attempts", 0)),
            created=created,
            updated=int(found.get("updated", found["created"])) / 1000,
            ended=int(found["ended"]) / 1000 if "ended" in found else None,
            age_s=max(now - created, 0),
            held_for_s=max(remaining_s, 0),
            progress=Progress(_number(found.get("done")), _number(found.get("total")), found.get("stage", "")),
            error_type=found.get("error_type", ""),
            error=found.get("error", ""),
            successor=found.get("successor", ""),
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


def _number(text: str | None) -> int | None:
    return int(text) if text else None
