"""The port of a job store, and what goes through it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol

from repot.idempotency.error_text import error_message
from repot.logs import get_logger
from repot.submission.job import Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from repot.submission.job import Audit, Job

log = get_logger(__name__)

#: Limits of the audit of each tenant: refusals, and scopes with sums, those refused last.
MAX_REFUSALS = 1000
MAX_SCOPES = 1000


def digest(text: str | bytes) -> str:
    """Return the digest by which tenants, scopes and keys appear in the store: the whole SHA-256, hexadecimal."""
    return sha256(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text).hexdigest()


@dataclass(frozen=True, slots=True)
class Submission:
    """A request to accept a job. Digests are SHA-256, hexadecimal; durations are seconds."""

    id: str
    #: Digests of the tenant and of the scope, and the readable scope.
    tenant: str
    scope: str
    name: str
    task: str
    #: Digest of all arguments.
    payload: str
    #: Digest of the idempotency key; "" for none.
    key: str
    cost: float
    lease_s: float
    #: Digest of the owner; "" if not given.
    submitter: str = ""
    #: For how long a run whose lease has expired keeps its scope, as it could not reach the store either; 0 as a rule.
    grace_s: float = 0


@dataclass(frozen=True, slots=True)
class JobAttempt:
    """One run of a job by a worker: the owner of the job's lease."""

    id: str
    #: Digests of the tenant and of the scope.
    tenant: str
    scope: str
    #: New for each attempt; proves ownership later.
    owner: str
    #: How often the job's task had replaced itself (`Task.replace`) before.
    replacements: int = 0


class SubmitResult(StrEnum):
    """The store's answer to a submission."""

    ACCEPTED = "accepted"
    #: The idempotency key was used before with the same payload, or with another one.
    REPEATED = "repeated"
    MISMATCH = "mismatch"
    #: Another job holds the scope.
    CONFLICT = "conflict"


class StartResult(StrEnum):
    """The store's answer to the start of an attempt."""

    STARTED = "started"
    #: The job was cancelled, unsent, superseded, or replaced: it must not run.
    ENDED = "ended"
    SUCCEEDED = "succeeded"
    #: Another attempt of the job holds its lease, or had one, as a run of another job had, within the grace.
    BUSY = "busy"
    #: Another job holds the scope.
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class StoreReply:
    """The result of a request, and the job that it concerns, if there is one."""

    #: A `SubmitResult`, a `StartResult` or a `Status`.
    result: str
    job: Job | None


@dataclass(frozen=True, slots=True)
class ExpiredScope:
    """A scope whose job's lease has expired, with the digests of tenant and scope; no job if its record is deleted."""

    tenant: str
    scope: str
    job: Job | None


class JobStore(Protocol):
    """Jobs in the lease store of the settings.

    Every method raises StoreUnreachable if the store does not answer; it may have acted or not. Every method is safe to
    repeat; a refusal whose answer was lost counts twice.
    """

    def submit(self, submission: Submission) -> StoreReply:
        """Claim a scope; return a `SubmitResult` with the job that it concerns."""

    def sent(self, tenant: str, job: str, hold_s: float) -> StoreReply:
        """Hold the scope for `hold_s`, as the message is on the broker; return the job's status."""

    def undo(self, tenant: str, job: str, error: BaseException) -> StoreReply:
        """Free the scope, as the message could not be sent; return the job's status."""

    def get(self, tenant: str, job: str) -> Job | None:
        """Return a job; None if there is no such job."""

    def cancel(self, tenant: str, job: str) -> StoreReply:
        """Cancel a job; return `unknown`, `cancelled`, or its final status."""

    def start(self, attempt: JobAttempt, task: str, lease_s: float, grace_s: float = 0) -> StoreReply:
        """Start an attempt; return a `StartResult`. Within a grace, a run keeps a lease that has expired."""

    def renew(self, attempt: JobAttempt, lease_s: float, progress: Sequence[str | float] = ()) -> str:
        """Extend the lease, and record fields and values of progress; return `running` if the lease is held."""

    def finish(self, attempt: JobAttempt, status: Status, error: BaseException | None = None, hold_s: float = 0) -> str:
        """End an attempt; return the job's status."""

    def audit(self, tenant: str, limit: int) -> Audit:
        """Return the last refusals, and the sums; values that cannot be read are skipped, and logged."""

    def expired(self, tenant: str | None = None) -> Iterator[ExpiredScope]:
        """Return the scopes whose job's lease has expired, of one tenant (its digest) or of all; change nothing."""

    def reap(self, tenant: str | None = None) -> Iterator[ExpiredScope]:
        """Free such scopes, and mark their jobs lost, one by one; never one with a live lease."""

    def close(self) -> None:
        """Close the connections."""


def described(error: BaseException | None) -> tuple[str, str]:
    """Return an exception's class name and message, with passwords masked."""
    if error is None:
        return ("", "")
    return type(error).__name__, error_message(error) or ""


def warn_unreadable(scope: str, job: Job | None) -> None:
    """Log that the job of a scope that is free now cannot be read."""
    if job and job.status is Status.UNREADABLE:
        name = f"the record of job {job.id}" if job.id else scope
        log.warning("%s cannot be read; its scope is free", name, extra={"action": "job_unreadable"})
