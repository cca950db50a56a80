"""Open the lease store that the settings name."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from repot.errors import ConfigInvalid
from repot.idempotency.lease_store import RedisLeaseStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.config import WorkerSettings
    from repot.idempotency.records import RecordStore


def open_store(settings: WorkerSettings) -> RecordStore:
    """Return the store of leases and idempotency records; it connects on first use.

    Raises:
        ConfigInvalid: it is a database, and `repot[database]` is not installed.
    """
    if settings.database_url is None:
        return RedisLeaseStore(settings)
    with need_sqlalchemy(settings):
        from repot.idempotency.database_store import DatabaseLeaseStore
    return DatabaseLeaseStore(settings)


@contextmanager
def need_sqlalchemy(settings: WorkerSettings) -> Iterator[None]:
    """Raise ConfigInvalid if an import of the block fails, as `repot[database]` is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        message = f"WORKER_LEASE_STORE={settings.database_url} needs SQLAlchemy, which is not installed: {error}"
        raise ConfigInvalid(message, hint="pip install 'repot[database]'") from error
