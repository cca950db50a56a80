"""Redis connections that leave a server which is no primary any more.

A failover demotes a Redis that is alive: it takes connections, answers PING, and refuses
every write (READONLY); clients that wait in BRPOP are told UNBLOCKED. kombu and Celery
take both for errors of a command, so that a worker ends, or publishes to the old primary
for as long as its connection lives (celery/celery#7946). Here both are what they are, a
lost connection: the client connects again, to wherever the name, the list of servers or
Sentinel leads now, and a server that says in its greeting that it is a replica is passed
over.

A result backend that is demoted refuses as well, and Celery makes a failure of a task that ran. So does one that takes
no writes for another reason: a save failed (MISCONF), too few replicas (NOREPLICAS), no memory (OOM). It is left in the
same way, and Celery tries again by its policy. Not at the greeting: who only reads results may do so on a replica.

Reaches into kombu 5.7, Celery 5.7 and redis-py 8: `Channel.connection_class` and `connection_class_ssl`
of `kombu.transport.redis`, also those of `SentinelChannel`; `Connection.read_response`,
`on_connect_check_health` and `handshake_metadata` of redis-py, and `ConnectionPool.connection_class`;
`RedisBackend._get_pool` of `celery.backends.redis`. If one is renamed, a worker ends when its Redis is demoted, or a
task that ran is called a failure; `tests/servers/test_primary.py` fails then.
"""

from __future__ import annotations

from functools import wraps
from threading import Lock
from typing import TYPE_CHECKING, Any

import redis

from repot.config.urls import REDIS_SCHEMES

if TYPE_CHECKING:
    from repot.config import BrokerUrl, ServiceUrl

#: Applications are configured in several threads, too.
_CHANGING = Lock()
_CLASSES = ("connection_class", "connection_class_ssl")


class WritesRefused(redis.ConnectionError):
    """A Redis answers, and takes no writes: a replica, or a result backend with another reason."""


def follow_the_primary(url: BrokerUrl) -> None:
    """Let kombu's connections to a Redis leave a server that is demoted; does nothing for other brokers."""
    if url.is_redis:
        _follow()


def store_on_the_primary(url: ServiceUrl) -> None:
    """Let a result backend's connections leave a Redis that refuses writes; does nothing for other backends.

    Sentinel's do so by themselves (`redis.sentinel.SentinelManagedConnection`).
    """
    if url.scheme in REDIS_SCHEMES:
        _store()


def _store() -> None:
    from celery.backends import redis as celery_redis

    backend_class: Any = celery_redis.RedisBackend
    with _CHANGING:
        make = backend_class._get_pool  # noqa: SLF001
        if hasattr(make, "__wrapped__"):
            return

        @wraps(make)
        def get_pool(backend: Any, **options: Any) -> Any:  # noqa: ANN401 - Celery's and redis-py's
            pool = make(backend, **options)
            pool.connection_class = _changed(pool.connection_class, _OfWritable)
            return pool

        backend_class._get_pool = get_pool  # noqa: SLF001


def _changed(connection: type, part: type) -> type:
    """Return a class of connections with a part of ours before it, once."""
    return connection if issubclass(connection, part) else type(connection.__name__, (part, connection), {})


def _follow() -> None:
    from kombu.transport.redis import Channel, SentinelChannel

    with _CHANGING:
        for kind in (Channel, SentinelChannel):
            for name in _CLASSES:
                connection = getattr(kind, name)
                if connection is not None:
                    setattr(kind, name, _changed(connection, _OfPrimary))


#: Besides READONLY: the server is there, and takes no writes now.
_NO_WRITES = (redis.exceptions.OutOfMemoryError, redis.exceptions.MasterDownError)
_NO_WRITES_SAID = ("MISCONF ", "NOREPLICAS ", "OOM command not allowed")


def _is_demoted(error: redis.ResponseError) -> bool:
    # EXEC and scripts say it in the middle of theirs
    said = str(error)
    refused = isinstance(error, redis.exceptions.ReadOnlyError) or "READONLY You can't write" in said
    return refused or said.startswith("UNBLOCKED")


class _OfWritable:
    """The part of a connection that leaves a server which refuses writes; stands before a class of redis-py's."""

    def read_response(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - redis-py's signature
        """Read an answer.

        Raises:
            WritesRefused: the server takes no writes, or sends those who wait away because it is a replica now.
        """
        try:
            return super().read_response(*arguments, **options)  # type: ignore[misc]
        except redis.ResponseError as error:
            if not self._is_away(error):
                raise
            self._leave(str(error), error)

    def _is_away(self, error: redis.ResponseError) -> bool:
        return _is_demoted(error) or isinstance(error, _NO_WRITES) or any(one in str(error) for one in _NO_WRITES_SAID)

    def _leave(self, why: str, error: Exception | None = None) -> None:
        self.disconnect()  # type: ignore[attr-defined]
        message = f"{getattr(self, 'host', '')}:{getattr(self, 'port', '')} takes no writes: {why}"
        raise WritesRefused(message) from error


class _OfPrimary(_OfWritable):
    """The part of a connection that also passes over a replica."""

    def on_connect_check_health(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - redis-py's signature
        """Greet the server.

        Raises:
            WritesRefused: it says that it is a replica, which RESP3 has it say.
        """
        super().on_connect_check_health(*arguments, **options)  # type: ignore[misc]
        greeting = getattr(self, "handshake_metadata", None) or {}
        role = greeting.get(b"role") or greeting.get("role")
        if role in (b"replica", "replica"):
            self._leave("it is a replica")

    def _is_away(self, error: redis.ResponseError) -> bool:
        # a broker that is full or cannot save is the same server after each new connection
        return _is_demoted(error)
