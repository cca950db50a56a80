"""Open the lease store that the settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.idempotency.lease_store import RedisLeaseStore
from repot.store.redis_or_database import redis_or_database

if TYPE_CHECKING:
    from repot.config import WorkerSettings
    from repot.idempotency.records import RecordStore


def open_store(settings: WorkerSettings) -> RecordStore:
    """Return the store of leases and idempotency records; it connects on first use.

    Raises:
        ConfigInvalid: it is a database, and `repot[database]` is not installed.
    """
    return redis_or_database(settings, RedisLeaseStore, _in_database)


def _in_database(settings: WorkerSettings) -> RecordStore:
    from repot.idempotency.database_store import DatabaseLeaseStore

    return DatabaseLeaseStore(settings)
