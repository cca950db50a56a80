"""Open the job store that the settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.idempotency.guard import guard_of
from repot.store.redis_or_database import redis_or_database
from repot.submission.redis_job_store import RedisJobStore
from repot.upstream.app_state import state_of

if TYPE_CHECKING:
    from celery import Celery

    from repot.config import WorkerSettings
    from repot.submission.job_store import JobStore


def open_job_store(settings: WorkerSettings) -> JobStore:
    """Return the store of jobs; it connects on first use.

    Raises:
        ConfigInvalid: it is a database, and `repot[database]` is not installed.
    """
    return redis_or_database(settings, RedisJobStore, _in_database)


def store_of(app: Celery) -> JobStore:
    """Return the job store of an application; it is made on first use, from the settings of `repot.configure(app)`.

    Raises:
        ConfigInvalid: no setting names a store, or the environment is wrong.
    """
    store: JobStore | None = state_of(app).jobs
    if store is None:
        store = open_job_store(guard_of(app).settings)
        state_of(app).jobs = store
    return store


def _in_database(settings: WorkerSettings) -> JobStore:
    from repot.submission.database_job_store import DatabaseJobStore

    return DatabaseJobStore(settings)
