"""Redis connections that leave a server which is no primary any more.

A failover demotes a Redis that is alive: it takes connections, answers PING, and refuses
every write (READONLY); clients that wait in BRPOP are told UNBLOCKED. kombu and Celery
take both for errors of a command, so that a worker ends, or publishes to the old primary
for as long as its connection lives (celery/celery#7946). Here both are what they are, a
lost connection: the client connects again, to wherever the name, the list of servers or
Sentinel leads now, and a server that says in its greeting that it is a replica is passed
over.

Reaches into kombu 5.7 and redis-py 8: `Channel.connection_class` and `connection_class_ssl`
of `kombu.transport.redis`, also those of `SentinelChannel`; `Connection.read_response`,
`on_connect_check_health` and `handshake_metadata` of redis-py. If one is renamed, a worker
ends when its Redis is demoted; `tests/servers/test_primary.py` fails then.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

import redis

if TYPE_CHECKING:
    from repot.config import BrokerUrl

#: Applications are configured in several threads, too.
_CHANGING = Lock()
_CLASSES = ("connection_class", "connection_class_ssl")


class ServerDemoted(redis.ConnectionError):
    """A Redis is a read-only replica."""


def follow_the_primary(url: BrokerUrl) -> None:
    """Let kombu's connections to a Redis leave a server that is demoted; does nothing for other brokers."""
    if url.is_redis:
        _follow()


def _follow() -> None:
    from kombu.transport.redis import Channel, SentinelChannel

    with _CHANGING:
        for kind in (Channel, SentinelChannel):
            for name in _CLASSES:
                connection = getattr(kind, name)
                if connection is not None and not issubclass(connection, _OfPrimary):
                    setattr(kind, name, type(connection.__name__, (_OfPrimary, connection), {}))


class _OfPrimary:
    """The part of a connection that knows a replica; stands before a class of redis-py's."""

    def on_connect_check_health(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - redis-py's signature
        """Greet the server.

        Raises:
            ServerDemoted: it says that it is a replica, which RESP3 has it say.
        """
        super().on_connect_check_health(*arguments, **options)  # type: ignore[misc]
        greeting = getattr(self, "handshake_metadata", None) or {}
        role = greeting.get(b"role") or greeting.get("role")
        if role in (b"replica", "replica"):
            self._leave("it is a replica")

    def read_response(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - redis-py's signature
        """Read an answer.

        Raises:
            ServerDemoted: the server refuses writes, or sends those who wait away because it is a replica now.
        """
        try:
            return super().read_response(*arguments, **options)  # type: ignore[misc]
        except redis.exceptions.ReadOnlyError as error:
            self._leave(str(error), error)
        except redis.ResponseError as error:
            if not str(error).startswith("UNBLOCKED"):
                raise
            self._leave(str(error), error)

    def _leave(self, why: str, error: Exception | None = None) -> None:
        self.disconnect()  # type: ignore[attr-defined]
        message = f"{getattr(self, 'host', '')}:{getattr(self, 'port', '')} is no primary any more: {why}"
        raise ServerDemoted(message) from error
