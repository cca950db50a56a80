"""Open the lease store that the settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.errors import ConfigInvalid
from repot.idempotency.lease_store import RedisLeaseStore

if TYPE_CHECKING:
    from repot.config import ServiceUrl, WorkerSettings
    from repot.idempotency.records import RecordStore


def open_store(settings: WorkerSettings) -> RecordStore:
    """Return the store of leases and idempotency records; it connects on first use.

    Raises:
        ConfigInvalid: it is a database, and `repot[database]` is not installed.
    """
    if settings.store_url is None or not settings.store_url.is_database:
        return RedisLeaseStore(settings)
    try:
        from repot.idempotency.database_store import DatabaseLeaseStore
    except ModuleNotFoundError as error:
        raise not_installed(settings.store_url, error) from error
    return DatabaseLeaseStore(settings)


def not_installed(url: ServiceUrl, error: ModuleNotFoundError) -> ConfigInvalid:
    """Return the error of a lease store in a database without `repot[database]`."""
    message = f"WORKER_LEASE_STORE={url} needs SQLAlchemy, which is not installed: {error}"
    return ConfigInvalid(message, hint="pip install 'repot[database]'")
