"""Redis connections that leave a server which is no longer the primary.

A failover demotes a Redis that is alive: it takes connections, answers PING, and refuses every write (READONLY);
clients that wait in BRPOP receive UNBLOCKED. kombu and Celery take both for errors of a command
(`repot/upstream/redis_connections.py`). Here both are a lost connection: the client connects again, to wherever the
name, the list of servers or Sentinel leads now, and passes over a server whose greeting says that it is a replica.

A demoted result backend also refuses, and Celery reports a task that ran as failed. So does one that takes
no writes for another reason: a save failed (MISCONF), too few replicas (NOREPLICAS), no memory (OOM). It is left in the
same way, and Celery tries again by its policy. A replica's greeting is no reason there: a process that only reads
results may do so on a replica.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import redis

from repot.config.urls import REDIS_SCHEMES
from repot.upstream.redis_connections import CheckedConnection, check_broker_connections, check_result_connections

if TYPE_CHECKING:
    from repot.config import BrokerUrl, ServiceUrl


class WritesRefused(redis.ConnectionError):
    """A Redis answers and takes no writes: a replica, or a result backend with another reason."""


def follow_the_primary(url: BrokerUrl) -> None:
    """Let kombu's connections to a Redis leave a server that is demoted; does nothing for other brokers."""
    if url.is_redis:
        check_broker_connections(_OfPrimary)


def store_on_the_primary(url: ServiceUrl) -> None:
    """Let a result backend's connections leave a Redis that refuses writes; does nothing for other backends."""
    if url.scheme in REDIS_SCHEMES:
        check_result_connections(_OfWritable)


#: Besides READONLY: the server runs, and takes no writes now.
_NO_WRITES = (redis.exceptions.OutOfMemoryError, redis.exceptions.MasterDownError)
_NO_WRITES_SAID = ("MISCONF ", "NOREPLICAS ", "OOM command not allowed")


def _is_demoted(error: redis.ResponseError) -> bool:
    # EXEC and scripts have it in the middle of their message
    said = str(error)
    refused = isinstance(error, redis.exceptions.ReadOnlyError) or "READONLY You can't write" in said
    return refused or said.startswith("UNBLOCKED")


class _OfWritable(CheckedConnection):
    """The part of a connection that leaves a server which refuses writes; stands before a class of redis-py's."""

    def on_refused(self, error: redis.ResponseError) -> None:
        """Leave a server that takes no writes, or that sends waiting clients away because it is a replica now.

        Raises:
            WritesRefused: it is such a server.
        """
        if self._is_away(error):
            self._leave(str(error), error)

    def _is_away(self, error: redis.ResponseError) -> bool:
        return _is_demoted(error) or isinstance(error, _NO_WRITES) or any(one in str(error) for one in _NO_WRITES_SAID)

    def _leave(self, why: str, error: Exception | None = None) -> None:
        self.disconnect()  # type: ignore[attr-defined]
        message = f"{getattr(self, 'host', '')}:{getattr(self, 'port', '')} takes no writes: {why}"
        raise WritesRefused(message) from error


class _OfPrimary(_OfWritable):
    """The part of a connection that passes over a replica as well."""

    def on_greeting(self, greeting: dict[Any, Any]) -> None:
        """Leave a server that says it is a replica, which it does with RESP3.

        Raises:
            WritesRefused: it is a replica.
        """
        if (greeting.get(b"role") or greeting.get("role")) in (b"replica", "replica"):
            self._leave("it is a replica")

    def _is_away(self, error: redis.ResponseError) -> bool:
        # a broker that is full or cannot save is the same server after each new connection
        return _is_demoted(error)
