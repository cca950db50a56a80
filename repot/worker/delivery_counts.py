"""Store counts of deliveries in the lease store: the port, and its adapter for Redis and Valkey."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from repot.brokers.redis.error_replies import ERRORS
from repot.idempotency.connection import failure, open_client
from repot.store.redis_or_database import redis_or_database

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repot.config import WorkerSettings
    from repot.idempotency.connection import Client


class DeliveryCounts(Protocol):
    """One number for each message, which starts at 0 and is kept for a time that each change prolongs.

    Every method raises StoreUnreachable or another RepotError if the store does not count; it may have counted.
    """

    def delivered(self, name: str) -> int:
        """Add one to the count of a message, and return it."""

    def returned(self, names: Sequence[str]) -> None:
        """Take one off the count of each message; it may become negative."""

    def close(self) -> None:
        """Close the connections."""


def open_counts(settings: WorkerSettings, retention_s: int) -> DeliveryCounts:
    """Return the counts in the lease store of the settings; it connects on first use.

    Raises:
        ConfigInvalid: it is a database, and `repot[database]` is not installed.
    """

    def in_database(settings: WorkerSettings) -> DeliveryCounts:
        from repot.worker.database_delivery_counts import DatabaseDeliveryCounts

        return DatabaseDeliveryCounts(settings, retention_s)

    return redis_or_database(settings, lambda settings: RedisDeliveryCounts(settings, retention_s), in_database)


class RedisDeliveryCounts:
    """The `DeliveryCounts` in a Redis or Valkey."""

    def __init__(self, settings: WorkerSettings, retention_s: int) -> None:
        """Use the store of the settings; connects on first use."""
        self._settings, self._retention_s = settings, retention_s
        self._prefix = f"{settings.lease_prefix}:deliveries:"

    @cached_property
    def _client(self) -> Client:
        return open_client(self._settings)

    def delivered(self, name: str) -> int:
        """Add one to the count of a message, and return it."""
        return int(self._run("incr", [name])[0])

    def returned(self, names: Sequence[str]) -> None:
        """Take one off the count of each message."""
        self._run("decr", names)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _run(self, command: str, names: Sequence[str]) -> list[Any]:
        try:
            with self._client.pipeline(transaction=False) as pipeline:
                for name in names:
                    getattr(pipeline, command)(self._prefix + name)
                for name in names:
                    pipeline.expire(self._prefix + name, self._retention_s)
                return list(pipeline.execute())
        except ERRORS as error:
            url = self._settings.redis_store_url
            # without a URL there is no client, and no request
            assert url is not None
            raise failure(url, error) from error
