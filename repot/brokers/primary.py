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

from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Any

import redis

from repot.config.urls import REDIS_SCHEMES
from repot.logs import get_logger
from repot.upstream.redis_connections import CheckedConnection, check_broker_connections, check_result_connections
from repot.upstream.redis_start import is_unknown

if TYPE_CHECKING:
    from repot.config import BrokerUrl, ServiceUrl


log = get_logger(__name__)


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
    message = str(error)
    refused = isinstance(error, redis.exceptions.ReadOnlyError) or "READONLY You can't write" in message
    return refused or message.startswith("UNBLOCKED")


class _OfWritable(CheckedConnection):
    """The part of a connection that leaves a server which refuses writes; a mixin for a class of redis-py's."""

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

    def on_refused(self, error: redis.ResponseError) -> None:
        """Name a command that is not known, and leave a server that takes no writes.

        Raises:
            WritesRefused: it is such a server.
        """
        if is_unknown(error) and not self._may_be_refused:
            _say_unknown(self._server, self.asked)
        super().on_refused(error)

    def on_closed(self, asked: str) -> None:
        """Name the command that the server, or a proxy, answers by closing each connection."""
        if asked and not self._may_be_refused:
            _CLOSINGS.note(self._server, asked)

    @property
    def _may_be_refused(self) -> bool:
        return self.is_trial or self.asked.startswith(("CLIENT ", "HELLO"))

    @property
    def _server(self) -> str:
        return f"{getattr(self, 'host', '')}:{getattr(self, 'port', '')}"

    def _is_away(self, error: redis.ResponseError) -> bool:
        # a broker that is full or cannot save is the same server after each new connection
        return _is_demoted(error)


_NEXT_STEP = "A worker needs it: use another address of the server, or another service"


@cache
def _say_unknown(server: str, asked: str) -> None:
    log.error(
        "%s does not know %s: the server, or a proxy before it. %s",
        server,
        asked,
        _NEXT_STEP,
        extra={"action": "command_refused"},
    )


class _Closings:
    """Counts connections that were closed in answer to the same command."""

    def __init__(self) -> None:
        """Know of none."""
        self._last: tuple[str, str] | None = None
        self._since = 0.0
        self._times = 0

    def note(self, server: str, asked: str) -> None:
        """Note one more; say it once for each server and command."""
        if (server, asked) != self._last or monotonic() - self._since > _CLOSED_WITHIN_S:
            self._last, self._since, self._times = (server, asked), monotonic(), 0
        self._times += 1
        if self._times == _CLOSED_TIMES:
            log.error(
                "%s closed %d connections in answer to %s. If the server is up, it or a proxy before it does not know "
                "that. %s",
                server,
                self._times,
                asked,
                _NEXT_STEP,
                extra={"action": "command_refused"},
            )


#: Connections that are closed in answer to one command, one after the other, within so many seconds, tell of a refusal.
_CLOSED_TIMES, _CLOSED_WITHIN_S = 4, 60.0
_CLOSINGS = _Closings()
