"""A lease store in memory, for the tests of applications: the answers of a real store, with a clock that tests set.

store = MemoryLeaseStore()
with guarded_by(app, store):
    ...
    store.advance(60)  # a minute passes
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from repot.config import ExplicitSettings
from repot.errors import ConfigInvalid
from repot.idempotency.guard import Guard
from repot.idempotency.records import FinishMode
from repot.idempotency.transitions import StoredRecord, acquiring, finishing, renewing
from repot.store.memory import MemoryRecords
from repot.upstream.app_state import state_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from repot.idempotency.fingerprint import Fingerprint
    from repot.idempotency.records import Answer, Ending, FinishResult, LeaseRequest, Record


class MemoryLeaseStore:
    """The `LeaseStore` in the memory of this process; only `advance` moves its clock."""

    def __init__(self) -> None:
        """Start empty, at time 1000."""
        self._records = MemoryRecords(StoredRecord.is_kept)

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self._records.advance(seconds)

    def keys(self) -> list[str]:
        """Return the keys of all records whose retention is not over."""
        return self._records.keys()

    def acquire(self, fingerprint: Fingerprint, request: LeaseRequest) -> Answer:
        """Acquire the lease of a key for one run."""
        return self._records.apply(fingerprint.key, acquiring(fingerprint, request))

    def renew(self, key: str, request: LeaseRequest) -> bool:
        """Extend the lease."""
        return self._records.apply(key, renewing(request))

    def finish(self, key: str, owner: str, ending: Ending, mode: FinishMode = FinishMode.IN_LEASE) -> FinishResult:
        """End a lease, and record how the run ended."""
        return self._records.apply(key, finishing(owner, ending, mode))

    def finish_on(self, _connection: object, key: str, owner: str, ending: Ending) -> FinishResult:
        """End a lease beside a transaction of the test's; a rollback does not undo that."""
        return self.finish(key, owner, ending, FinishMode.LATE)

    def connection_over(self, dbapi: object) -> object:
        """Return the connection as it is."""
        return dbapi

    def new_session(self) -> object:
        """Refuse: there is no database.

        Raises:
            ConfigInvalid: in any case.
        """
        message = "transaction() needs a session or a connection with a MemoryLeaseStore, which has no database"
        raise ConfigInvalid(message, hint="Write self.transaction(Session), as with the database of production.")

    def inspect(self, key: str) -> Record | None:
        """Return the record of a key; None if there is no such record."""
        found = self._records.find(key)
        return found.as_record(self._records.now) if found else None


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
