"""Idempotency records in the user's own database: one row for each key, one transaction for each step, by its clock."""

from __future__ import annotations

from dataclasses import asdict, fields
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from repot.database.connection import Database
from repot.database.driver_connection import DriverConnection
from repot.database.schema import idempotency as table
from repot.database.schema import now
from repot.idempotency.records import FinishMode, State
from repot.idempotency.transitions import StoredRecord, acquiring, finishing, renewing
from repot.store.rows import RowRecords

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection

    from repot.config import WorkerSettings
    from repot.idempotency.fingerprint import Fingerprint
    from repot.idempotency.records import Answer, Ending, FinishResult, LeaseRequest, Record
    from repot.store.rules import Rule

T = TypeVar("T")

#: Rows that one transaction reads, or deletes because their retention is over.
_PAGE = 500
#: Seconds between two deletions by one process.
_CLEAN_EVERY_S = 60.0

_COLUMNS = [table.c[one.name] for one in fields(StoredRecord)]


class DatabaseLeaseStore:
    """The `LeaseStore` on PostgreSQL, MySQL, MariaDB or SQLite."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Use the store of the settings; connects on first use."""
        self.database = Database(settings)
        self._prefix = settings.lease_prefix
        self._cleans_at = monotonic() + _CLEAN_EVERY_S

    def close(self) -> None:
        """Close the connections."""
        self.database.close()

    def acquire(self, fingerprint: Fingerprint, request: LeaseRequest) -> Answer:
        """Acquire the lease of a key for one run."""
        if monotonic() >= self._cleans_at:
            self._cleans_at = monotonic() + _CLEAN_EVERY_S
            self.clean()
        return self._apply(fingerprint.key, acquiring(fingerprint, request))

    def renew(self, key: str, request: LeaseRequest) -> bool:
        """Extend the lease."""
        return self._apply(key, renewing(request))

    def finish(self, key: str, owner: str, ending: Ending, mode: FinishMode = FinishMode.IN_LEASE) -> FinishResult:
        """End a lease, and record how the run ended."""
        return self._apply(key, finishing(owner, ending, mode))

    def finish_on(
        self, connection: Connection | DriverConnection, key: str, owner: str, ending: Ending
    ) -> FinishResult:
        """Do the same in a transaction of the caller's, which ends it: until then no other run acquires the key."""
        rule = finishing(owner, ending, FinishMode.COMMIT)
        return _RECORDS.apply(connection, rule, prefix=self._prefix, key=key)

    def connection_over(self, dbapi: Any) -> DriverConnection:  # noqa: ANN401 - of a driver
        """Return a connection for `finish_on` that uses one of a driver."""
        return DriverConnection(dbapi, self.database.engine.dialect)

    def new_session(self) -> Session:
        """Return a new session of SQLAlchemy's on the store's database."""
        return Session(self.database.unlimited.engine)

    def inspect(self, key: str) -> Record | None:
        """Return the record of a key; None if there is no such record."""
        found, at = self.database.read(lambda one: _RECORDS.find(one, prefix=self._prefix, key=key))
        return found.as_record(at) if found else None

    def records(self) -> Iterator[Record]:
        """Return all records, by their keys; one that changes meanwhile may be missed."""
        last = ""
        while True:
            query = (
                select(*_COLUMNS, now())
                .where(table.c.prefix == self._prefix, table.c.key > last)
                .order_by(table.c.key)
                .limit(_PAGE)
            )
            page = self.database.read(lambda connection, query=query: connection.execute(query).all())  # type: ignore[misc]
            for row in page:
                found, at = _stored(row), row[-1]
                if found.is_kept(at):
                    yield found.as_record(at)
            if len(page) < _PAGE:
                return
            last = page[-1].key

    def now(self) -> float:
        """Return the time by the database's clock, in seconds since 1970."""
        return self.database.read(lambda connection: float(connection.execute(select(now())).scalar_one()))

    def clean(self) -> int:
        """Delete rows whose retention is over, at most 500; return how many."""

        def act(connection: Connection) -> int:
            over = table.c.deleted_at <= now()
            keys = connection.scalars(
                select(table.c.key).where(table.c.prefix == self._prefix, over).limit(_PAGE)
            ).all()
            if not keys:
                return 0
            return connection.execute(
                delete(table).where(table.c.prefix == self._prefix, table.c.key.in_(keys), over)
            ).rowcount

        return self.database.transact(act)

    def _apply(self, key: str, rule: Rule[StoredRecord, T]) -> T:
        return self.database.transact(lambda one: _RECORDS.apply(one, rule, prefix=self._prefix, key=key))


def _stored(row: Sequence[Any]) -> StoredRecord:
    # the last column of some queries is the time
    values = dict(zip((column.name for column in _COLUMNS), row, strict=False))
    return StoredRecord(**values | {"state": State(values["state"])})


def _values(record: StoredRecord) -> dict[str, Any]:
    values = asdict(record)
    del values["key"]
    return values


_RECORDS = RowRecords(table, _COLUMNS, _stored, _values, StoredRecord.is_kept)
