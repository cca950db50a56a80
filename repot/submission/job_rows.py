"""The rows of one tenant's jobs in one transaction: those of a scope, of an idempotency key, and of the audit.

Rows are locked in this order: the scope, the key, the audit. A transaction that writes a job has locked its scope, so
jobs themselves are read without a lock.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, delete, insert, select, update

from repot.database import job_tables as tables
from repot.database.schema import now
from repot.database.text import storable
from repot.submission.job import Audit, Job, Refusal, Savings, Status
from repot.submission.job_store import MAX_REFUSALS, MAX_SCOPES, StoreReply, digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement, Connection, Table

    from repot.submission.job import RefusalKind

#: States in which a job holds its scope until its lease expires.
ACTIVE = tuple(one.value for one in Status if one.is_active)


@dataclass(slots=True)
class StoredJob:
    """A job as it is stored. Instants are seconds since 1970, by the database's clock.

    Attributes:
        scope: the digest; `name` is readable.
        key: the digest of the idempotency key; "" for none.
        owner: of the attempt that started last.
        done, total, stage: the progress, as text; None before the first.
        deleted_at: it counts as absent from then on.
    """

    id: str
    scope: str
    task: str
    status: str
    generation: int
    created_at: float
    name: str = ""
    payload: str = ""
    key: str = ""
    submitter: str = ""
    owner: str = ""
    attempts: int = 0
    replacements: int = 0
    updated_at: float = 0
    expires_at: float = 0
    ended_at: float | None = None
    done: str | None = None
    total: str | None = None
    stage: str | None = None
    error_type: str = ""
    error: str = ""
    successor: str = ""
    deleted_at: float = 0

    @property
    def is_active(self) -> bool:
        """Whether it is in a state that holds a scope."""
        return self.status in ACTIVE

    def is_held(self, at: float, grace_s: float = 0) -> bool:
        """Return whether it holds its scope at this time; with a grace, a run does also when its lease has expired."""
        return (self.is_active and self.expires_at > at) or (self.status == Status.RUNNING and grace_s > 0)

    def as_job(self, at: float) -> Job:
        """Return the job at this time."""
        found = {name: value for name, value in asdict(self).items() if value is not None}
        texts = {name: str(round(value * 1000) if name.endswith("_at") else value) for name, value in found.items()}
        return Job.from_record(texts, at)


@dataclass(slots=True)
class StoredScope:
    """A scope: the job that holds it, "" for none; and the number of its last job."""

    scope: str
    job: str
    generation: int
    deleted_at: float


_JOB = [tables.jobs.c[one.name] for one in fields(StoredJob)]
_SCOPE = [tables.scopes.c[one.name] for one in fields(StoredScope)]


class JobRows:
    """The rows of one tenant, at the time `at` of the database's clock."""

    def __init__(self, connection: Connection, prefix: str, tenant: str, retention_s: float) -> None:
        """Use an open transaction."""
        self._connection, self._tenant = connection, {"prefix": prefix, "tenant": tenant}
        self._retention_s = retention_s
        # asked before rows are waited for: a lease is taken to last longer by that, and one given ends sooner
        self.at = float(connection.execute(select(now())).scalar_one())

    # Jobs and scopes

    def job(self, name: str) -> StoredJob | None:
        """Return a job; None if there is no such job."""
        found = self._first(tables.jobs, _JOB, id=storable(name))
        return StoredJob(*found) if found and self._is_kept(found) else None

    def lock(self, name: str) -> StoredScope:
        """Return a scope, which no other transaction changes before this one ends."""
        return StoredScope(name, **self._lock(tables.scopes, {"job": "", "generation": 0}, scope=name))

    def lock_job(self, name: str) -> tuple[StoredJob, StoredScope] | None:
        """Return a job, and its scope, which no other transaction changes meanwhile; None if there is no such job."""
        job = self.job(name)
        if job is None:
            return None
        scope = self.lock(job.scope)
        # another transaction may have changed it until the scope was locked
        job = self.job(name)
        return (job, scope) if job else None

    def put_job(self, job: StoredJob) -> None:
        """Write a job."""
        self._put(tables.jobs, {"id": job.id}, {name: value for name, value in asdict(job).items() if name != "id"})

    def put_scope(self, scope: StoredScope) -> None:
        """Write a scope."""
        values = {"job": scope.job, "generation": scope.generation, "deleted_at": scope.deleted_at}
        self._put(tables.scopes, {"scope": scope.scope}, values)

    def extend(self, job: StoredJob, scope: StoredScope, lease_s: float) -> None:
        """Extend the lease of a job on its scope, and write both."""
        job.expires_at, job.updated_at = self.at + lease_s, self.at
        job.deleted_at = scope.deleted_at = job.expires_at + self._retention_s
        self.put_job(job)
        self.put_scope(scope)

    def close(self, job: StoredJob, scope: StoredScope, status: str) -> None:
        """End a job, and write it; free its scope if the job holds it, and its key if nothing has sent the job."""
        if job.status == Status.ACCEPTED and status in (Status.LOST, Status.UNSENT):
            self.free_key(job.key, job.id)
        if scope.job == job.id:
            scope.job = ""
        self.put_scope(scope)
        job.status, job.updated_at, job.ended_at = status, self.at, self.at
        job.deleted_at = self.at + self._retention_s
        self.put_job(job)

    def active_job(self, scope: StoredScope, successor: str, grace_s: float) -> StoredJob | None:
        """Return the job that holds a scope, unless it is the `successor`; one with an expired lease becomes lost."""
        active = self.job(scope.job) if scope.job not in ("", successor) else None
        if active is None or active.is_held(self.at, grace_s):
            return active
        if active.is_active:
            active.successor = successor
            self.close(active, scope, Status.LOST)
        return None

    def reply(self, result: str, job: StoredJob | None) -> StoreReply:
        """Return an answer."""
        return StoreReply(result, job.as_job(self.at) if job else None)

    # Idempotency keys

    def lock_key(self, key: str) -> StoredJob | None:
        """Return the job of an idempotency key, which no other transaction takes before this one ends."""
        return self.job(self._lock(tables.keys, {"job": ""}, key=key)["job"])

    def put_key(self, key: str, job: str) -> None:
        """Let a key name a job."""
        self._put(tables.keys, {"key": key}, {"job": job, "deleted_at": self.at + self._retention_s})

    def free_key(self, key: str, job: str) -> None:
        """Delete a key if it names this job."""
        self._delete(tables.keys, tables.keys.c.key == key, tables.keys.c.job == job)

    # The audit

    def refuse(self, kind: RefusalKind, name: str, job: str, active: StoredJob, cost: float | None = None) -> None:
        """Record a refusal; one with a cost also in the sums of its tenant and of the scope with this name."""
        audit = self._lock(tables.audits, {"entries": 0, "refused": 0, "cost": 0.0})
        if not audit["entries"]:
            # of an audit whose retention has ended
            self._delete(tables.refusals)
            self._delete(tables.sums)
        audit["entries"] += 1
        audit["deleted_at"] = self.at + self._retention_s
        if cost is not None:
            audit["refused"] += 1
            audit["cost"] += cost
            self._add(name, cost, audit["entries"])
        self._put(tables.audits, {}, audit)
        entry = {"kind": kind, "scope": name, "job": job, "active": active.id, "status": active.status}
        self._put(tables.refusals, {"number": audit["entries"]}, {"refused_at": self.at, **entry})
        self._delete(tables.refusals, tables.refusals.c.number <= audit["entries"] - MAX_REFUSALS)

    def audit(self, limit: int) -> Audit:
        """Return the last refusals, newest first, and the sums."""
        table = tables.audits
        found = self._first(table, [table.c.refused, table.c.cost, table.c.deleted_at])
        if found is None or not self._is_kept(found):
            return Audit((), Savings(0, 0), {})
        columns = [tables.refusals.c[name] for name in ("refused_at", "kind", "scope", "job", "active", "status")]
        newest = select(*columns).where(self._own(tables.refusals)).order_by(tables.refusals.c.number.desc())
        rows = self._connection.execute(newest.limit(limit))
        sums = select(tables.sums.c.name, tables.sums.c.refused, tables.sums.c.cost).where(self._own(tables.sums))
        by_scope = {name: Savings(*saved) for name, *saved in self._connection.execute(sums)}
        return Audit(tuple(Refusal(*row) for row in rows), Savings(*found[:2]), by_scope)

    def clean_audit(self) -> None:
        """Delete the tenant's audit if its retention has ended."""
        found = self._first(tables.audits, [tables.audits.c.deleted_at], lock=True)
        if found and not self._is_kept(found):
            for table in (tables.audits, tables.refusals, tables.sums):
                self._delete(table)

    def _add(self, name: str, cost: float, number: int) -> None:
        table, scope = tables.sums, digest(name)
        found = self._first(table, [table.c.refused, table.c.cost], scope=scope)
        refused, total = found or (0, 0.0)
        self._put(
            table, {"scope": scope}, {"name": name, "refused": refused + 1, "cost": total + cost, "entry": number}
        )
        if found is None:
            by_entry = select(table.c.scope).where(self._own(table)).order_by(table.c.entry.desc())
            oldest = self._connection.scalars(by_entry.offset(MAX_SCOPES)).all()
            if oldest:
                self._delete(table, table.c.scope.in_(oldest))

    # All tables

    def _own(self, table: Table, **key: str | int) -> ColumnElement[bool]:
        return and_(*(table.c[name] == value for name, value in (self._tenant | key).items()))

    def _is_kept(self, row: Sequence[Any]) -> bool:
        # the last column of each query is `deleted_at`
        return bool(row[-1] > self.at)

    def _first(
        self, table: Table, columns: Sequence[ColumnElement[Any]], *, lock: bool = False, **key: str | int
    ) -> Sequence[Any] | None:
        query = select(*columns).where(self._own(table, **key))
        return self._connection.execute(query.with_for_update() if lock else query).first()

    def _lock(self, table: Table, empty: dict[str, Any], **key: str) -> dict[str, Any]:
        """Return a row's values, which no other transaction changes meanwhile; without a row `empty` ones."""
        empty = empty | {"deleted_at": self.at + self._retention_s}
        found = self._first(table, [table.c[name] for name in empty], lock=True, **key)
        if found is None:
            # another transaction that does the same is refused, and repeats its own
            self._connection.execute(insert(table).values(self._tenant | key | empty))
        return dict(zip(empty, found, strict=True)) if found and self._is_kept(found) else empty

    def _put(self, table: Table, key: dict[str, Any], values: dict[str, Any]) -> None:
        """Write a row, which another transaction may delete at any time if its retention has ended."""
        stored = {name: storable(value) for name, value in values.items()}
        if not self._connection.execute(update(table).where(self._own(table, **key)).values(stored)).rowcount:
            self._connection.execute(insert(table).values(self._tenant | key | stored))

    def _delete(self, table: Table, *conditions: ColumnElement[bool]) -> None:
        self._connection.execute(delete(table).where(self._own(table), *conditions))
