"""Choose between Redis and a database, by the lease store that the settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from repot.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.config import WorkerSettings

S = TypeVar("S")


def redis_or_database(
    settings: WorkerSettings, on_redis: Callable[[WorkerSettings], S], in_database: Callable[[WorkerSettings], S]
) -> S:
    """Return what one of the two makes of the settings; `in_database` imports what needs SQLAlchemy.

    Raises:
        ConfigInvalid: it is a database, and `repot[database]` is not installed.
    """
    if settings.database_url is None:
        return on_redis(settings)
    try:
        return in_database(settings)
    except ModuleNotFoundError as error:
        message = f"WORKER_LEASE_STORE={settings.database_url} needs SQLAlchemy, which is not installed: {error}"
        raise ConfigInvalid(message, hint="pip install 'repot[database]'") from error
