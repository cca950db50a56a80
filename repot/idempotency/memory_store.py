"""A lease store in memory, for the tests of applications: the answers of a real store, with a clock that tests set.

store = MemoryLeaseStore()
with guarded_by(app, store):
    ...
    store.advance(60)  # a minute passes
"""

from __future__ import annotations

from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

from repot.config import ExplicitSettings
from repot.errors import ConfigInvalid
from repot.idempotency import transitions
from repot.idempotency.guard import Guard
from repot.idempotency.records import FinishMode
from repot.upstream.app_state import state_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from repot.idempotency.fingerprint import Fingerprint
    from repot.idempotency.records import Answer, Ending, FinishResult, LeaseRequest, Record
    from repot.idempotency.transitions import StoredRecord


class MemoryLeaseStore:
    """The `LeaseStore` in the memory of this process; only `advance` moves its clock."""

    def __init__(self) -> None:
        """Start empty, at time 1000."""
        self._records: dict[str, StoredRecord] = {}
        self._now = 1000.0
        self._lock = Lock()

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self._now += seconds

    def keys(self) -> list[str]:
        """Return the keys of all records whose retention is not over."""
        with self._lock:
            return [key for key in self._records if self._found(key)]

    def acquire(self, fingerprint: Fingerprint, request: LeaseRequest) -> Answer:
        """Acquire the lease of a key for one run."""
        with self._lock:
            changed, answer = transitions.acquire(self._found(fingerprint.key), fingerprint, request, self._now)
            self._store(changed)
            return answer

    def renew(self, key: str, request: LeaseRequest) -> bool:
        """Extend the lease."""
        with self._lock:
            changed = transitions.renew(self._found(key), request, self._now)
            self._store(changed)
            return changed is not None

    def finish(self, key: str, owner: str, ending: Ending, mode: FinishMode = FinishMode.IN_LEASE) -> FinishResult:
        """End a lease, and record how the run ended."""
        with self._lock:
            changed, answer = transitions.finish(self._found(key), owner, ending, mode, self._now)
            self._store(changed)
            return answer

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
        with self._lock:
            found = self._found(key)
            return found.as_record(self._now) if found else None

    def _found(self, key: str) -> StoredRecord | None:
        found = self._records.get(key)
        return found if found and found.is_kept(self._now) else None

    def _store(self, changed: StoredRecord | None) -> None:
        if changed:
            self._records[changed.key] = changed


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
