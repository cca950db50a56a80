"""Store jobs in the user's own database: one transaction for each step, by its clock."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import and_, or_, select

from repot.database import job_tables as tables
from repot.database.connection import Database
from repot.database.retention import CLEAN_EVERY_S, delete_expired
from repot.database.schema import now
from repot.submission.job import RefusalKind, Status
from repot.submission.job_rows import ACTIVE, JobRows, StoredJob
from repot.submission.job_store import (
    ExpiredScope,
    StartResult,
    StoreReply,
    SubmitResult,
    described,
    warn_unreadable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import Connection

    from repot.config import WorkerSettings
    from repot.submission.job import Audit, Job
    from repot.submission.job_store import JobAttempt, Submission

T = TypeVar("T")

#: Scopes that one transaction reads.
_PAGE = 500
#: Tenants whose audits one clean-up deletes, with up to 2000 rows each.
_TENANTS = 10


class DatabaseJobStore:
    """The `JobStore` on PostgreSQL, MySQL, MariaDB or SQLite; every method but the iterators is one transaction."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Use the store of the settings; connects on first use."""
        self.database = Database(settings)
        self._prefix = settings.lease_prefix
        self._retention_s = settings.idempotency_retention
        self._cleans_at = monotonic() + CLEAN_EVERY_S

    def close(self) -> None:
        """Close the connections."""
        self.database.close()

    def submit(self, submission: Submission) -> StoreReply:
        """Claim a scope, its index and the job's record."""

        def act(rows: JobRows) -> StoreReply:
            scope = rows.lock(submission.scope)
            if found := rows.job(submission.id):
                # the answer to the first attempt was lost
                return rows.reply(SubmitResult.ACCEPTED, found)
            first = rows.lock_key(submission.key) if submission.key else None
            # a submitter that died before it sent the job has no use for the key
            if first and (first.status != Status.ACCEPTED or first.is_held(rows.at)):
                same = first.payload == submission.payload
                return rows.reply(SubmitResult.REPEATED if same else SubmitResult.MISMATCH, first)
            if active := rows.active_job(scope, submission.id, submission.grace_s):
                rows.refuse(RefusalKind.REFUSED, submission.name, submission.id, active, submission.cost)
                return rows.reply(SubmitResult.CONFLICT, active)
            scope.job, scope.generation = submission.id, scope.generation + 1
            job = StoredJob(
                id=submission.id,
                scope=submission.scope,
                name=submission.name,
                task=submission.task,
                status=Status.ACCEPTED,
                payload=submission.payload,
                key=submission.key,
                submitter=submission.submitter,
                generation=scope.generation,
                created_at=rows.at,
            )
            rows.extend(job, scope, submission.lease_s)
            if submission.key:
                rows.put_key(submission.key, submission.id)
            return rows.reply(SubmitResult.ACCEPTED, job)

        if monotonic() >= self._cleans_at:
            self._cleans_at = monotonic() + CLEAN_EVERY_S
            self.clean()
        return self._transact(submission.tenant, act)

    def sent(self, tenant: str, job: str, hold_s: float) -> StoreReply:
        """Hold the scope for `hold_s`, as the message is on the broker."""

        def act(rows: JobRows) -> StoreReply:
            locked = rows.lock_job(job)
            if locked is None:
                return StoreReply("", None)
            stored, scope = locked
            if stored.status == Status.ACCEPTED:
                stored.status = Status.QUEUED
                rows.extend(stored, scope, hold_s)
            return rows.reply(stored.status, stored)

        return self._transact(tenant, act)

    def undo(self, tenant: str, job: str, error: BaseException) -> StoreReply:
        """Free scope and idempotency key, unless a worker has the message after all."""

        def act(rows: JobRows) -> StoreReply:
            locked = rows.lock_job(job)
            if locked is None:
                return StoreReply("", None)
            stored, scope = locked
            if stored.status == Status.ACCEPTED:
                stored.error_type, stored.error = described(error)
                rows.close(stored, scope, Status.UNSENT)
            return rows.reply(stored.status, stored)

        return self._transact(tenant, act)

    def get(self, tenant: str, job: str) -> Job | None:
        """Return a job."""
        return self.database.read(lambda connection: _get(self._rows(connection, tenant), job))

    def cancel(self, tenant: str, job: str) -> StoreReply:
        """Cancel a job that has not ended, or is lost but may be delivered again."""

        def act(rows: JobRows) -> StoreReply:
            locked = rows.lock_job(job)
            if locked is None:
                return StoreReply("unknown", None)
            stored, scope = locked
            if stored.is_active or stored.status == Status.LOST:
                rows.close(stored, scope, Status.CANCELLED)
            return rows.reply(stored.status, stored)

        return self._transact(tenant, act)

    def start(self, attempt: JobAttempt, task: str, lease_s: float, grace_s: float = 0) -> StoreReply:
        """Start an attempt; safe to repeat, because the owner is new for each attempt."""

        def act(rows: JobRows) -> StoreReply:
            scope, job = rows.lock(attempt.scope), rows.job(attempt.id)
            if job and (known := _known(job, attempt, rows.at, grace_s)):
                return rows.reply(known, job)
            if job is None:
                # the record has expired, or was deleted: the message is still an accepted job
                scope.generation += 1
                job = StoredJob(attempt.id, attempt.scope, task, Status.QUEUED, scope.generation, rows.at)
            if active := rows.active_job(scope, job.id, grace_s):
                if not active.is_held(rows.at):
                    return rows.reply(StartResult.BUSY, job)
                job.successor = active.id
                rows.close(job, scope, Status.SUPERSEDED)
                rows.refuse(RefusalKind.SUPERSEDED, job.name, job.id, active)
                return rows.reply(StartResult.SUPERSEDED, job)
            job.ended_at, job.successor, job.error_type, job.error = None, "", "", ""
            job.status, job.owner, job.replacements = Status.RUNNING, attempt.owner, attempt.replacements
            job.attempts, scope.job = job.attempts + 1, job.id
            rows.extend(job, scope, lease_s)
            return rows.reply(StartResult.STARTED, job)

        return self._transact(attempt.tenant, act)

    def renew(self, attempt: JobAttempt, lease_s: float, progress: Sequence[str | float] = ()) -> str:
        """Extend the lease, and record progress; change nothing if another attempt owns the job."""

        def act(rows: JobRows) -> str:
            scope, job = rows.lock(attempt.scope), rows.job(attempt.id)
            if job is None or job.status != Status.RUNNING:
                return _status_of(job)
            if job.owner != attempt.owner or scope.job != job.id:
                return Status.LOST.value
            for name, value in zip(progress[::2], progress[1::2], strict=True):
                setattr(job, str(name), str(value))
            rows.extend(job, scope, lease_s)
            return _status_of(job)

        return self._transact(attempt.tenant, act)

    def finish(self, attempt: JobAttempt, status: Status, error: BaseException | None = None, hold_s: float = 0) -> str:
        """End an attempt; free its scope only if the job holds it."""

        def act(rows: JobRows) -> str:
            scope, job = rows.lock(attempt.scope), rows.job(attempt.id)
            # a job that was marked lost has ended after all; a cancelled one stays cancelled
            if job is None or job.owner != attempt.owner or job.status not in (Status.RUNNING, Status.LOST):
                return _status_of(job)
            if status is not Status.QUEUED:
                job.error_type, job.error = described(error)
                rows.close(job, scope, status)
            elif job.status == Status.RUNNING:
                job.status, job.replacements = status, attempt.replacements
                rows.extend(job, scope, hold_s)
            return _status_of(job)

        return self._transact(attempt.tenant, act)

    def audit(self, tenant: str, limit: int) -> Audit:
        """Return the last refusals, and the sums."""
        return self.database.read(lambda connection: self._rows(connection, tenant).audit(limit))

    def expired(self, tenant: str | None = None) -> Iterator[ExpiredScope]:
        """Return the scopes whose job's lease has expired, of one tenant (its digest) or of all; change nothing."""
        for owner, scope, name in self._not_held(tenant):
            job = self.get(owner, name)
            if job is None or not job.lease_remaining_s:
                yield _expired(owner, scope, job)

    def reap(self, tenant: str | None = None) -> Iterator[ExpiredScope]:
        """Free such scopes, and mark their jobs lost, one by one; never one with a live lease."""

        def act(rows: JobRows) -> tuple[bool, Job | None]:
            scope = rows.lock(name)
            job = rows.job(scope.job)
            if not scope.job or (job and job.is_held(rows.at)):
                return False, None
            if job and job.is_active:
                rows.close(job, scope, Status.LOST)
            else:
                scope.job = ""
                rows.put_scope(scope)
            return True, job.as_job(rows.at) if job else None

        for owner, name, _ in self._not_held(tenant):
            is_freed, job = self._transact(owner, act)
            if is_freed:
                yield _expired(owner, name, job)

    def clean(self) -> None:
        """Delete rows whose retention has ended: some 500 of each table."""
        for table in (tables.jobs, tables.scopes, tables.keys):
            self.database.transact(lambda connection, table=table: delete_expired(connection, table, self._prefix))  # type: ignore[misc]
        audits = tables.audits
        over = select(audits.c.tenant).where(audits.c.prefix == self._prefix, audits.c.deleted_at <= now())
        for tenant in self.database.read(lambda connection: connection.scalars(over.limit(_TENANTS)).all()):
            self._transact(tenant, JobRows.clean_audit)

    def _not_held(self, tenant: str | None) -> Iterator[tuple[str, str, str]]:
        """Return tenants, scopes and the jobs that they name, of those jobs that do not hold their scope."""
        jobs, scopes = tables.jobs, tables.scopes
        last = ("", "")
        is_its = and_(jobs.c.prefix == scopes.c.prefix, jobs.c.tenant == scopes.c.tenant, jobs.c.id == scopes.c.job)
        is_held = and_(is_its, jobs.c.status.in_(ACTIVE), jobs.c.expires_at > now())
        query = (
            select(scopes.c.tenant, scopes.c.scope, scopes.c.job)
            .where(scopes.c.prefix == self._prefix, scopes.c.job != "", scopes.c.deleted_at > now())
            .where(~select(jobs.c.id).where(is_held).exists())
            .order_by(scopes.c.tenant, scopes.c.scope)
            .limit(_PAGE)
        )
        if tenant is not None:
            query = query.where(scopes.c.tenant == tenant)
        while True:
            later = or_(scopes.c.tenant > last[0], and_(scopes.c.tenant == last[0], scopes.c.scope > last[1]))
            page = self.database.read(lambda connection, later=later: connection.execute(query.where(later)).all())  # type: ignore[misc]
            yield from ((owner, scope, job) for owner, scope, job in page)
            if len(page) < _PAGE:
                return
            last = page[-1].tenant, page[-1].scope

    def _rows(self, connection: Connection, tenant: str) -> JobRows:
        return JobRows(connection, self._prefix, tenant, self._retention_s)

    def _transact(self, tenant: str, act: Callable[[JobRows], T]) -> T:
        return self.database.transact(lambda connection: act(self._rows(connection, tenant)))


def _get(rows: JobRows, job: str) -> Job | None:
    found = rows.job(job)
    return found.as_job(rows.at) if found else None


def _expired(tenant: str, scope: str, job: Job | None) -> ExpiredScope:
    warn_unreadable(scope, job)
    return ExpiredScope(tenant, scope, job)


def _status_of(job: StoredJob | None) -> str:
    return str(job.status) if job else ""


def _known(job: StoredJob, attempt: JobAttempt, at: float, grace_s: float) -> StartResult | None:
    """Return why an attempt must not run, or that it has started already; None if its job may run."""
    if job.status == Status.RUNNING and job.owner == attempt.owner:
        # the answer to the first attempt was lost
        return StartResult.STARTED
    if job.status in (Status.CANCELLED, Status.UNSENT, Status.SUPERSEDED):
        return StartResult.ENDED
    if attempt.replacements < job.replacements:
        # a copy of a message whose run has already sent its replacement
        return StartResult.ENDED
    if job.status == Status.SUCCEEDED:
        return StartResult.SUCCEEDED
    # sending its replacement is the last step of a run: the replacement need not wait for the end of the run
    if job.status == Status.RUNNING and job.is_held(at, grace_s) and attempt.replacements == job.replacements:
        return StartResult.BUSY
    return None
