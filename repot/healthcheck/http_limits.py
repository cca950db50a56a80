"""HTTP for probes, with limits: a client that sends its request slowly, or never, cannot block the others.

uvicorn waits for a request without a limit, and each connection holds a file descriptor. Without free descriptors the
sidecar can neither accept a probe nor read its worker's status file.
"""

from __future__ import annotations

import resource
from time import monotonic
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

#: Time limit from the start of a connection, or of its next request, until that request is complete.
_REQUEST_WITHIN_S = 5.0

#: Limit of open connections; half of the process' file descriptors is another.
_MAX_CONNECTIONS = 512

#: Connections that may wait to be accepted.
BACKLOG = 128


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 with a time limit for each request and a limit on connections; the oldest idle one is closed first."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request; close the oldest idle connection if there are too many."""
        self.connected_at = monotonic()
        self._limit: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        self._await_request()
        if len(self.connections) > _max_connections():
            self._drop_oldest()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of the request; a further byte does not extend the time limit."""
        super().data_received(data)
        if self.is_idle:
            self._await_request()
        else:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Leave the idle connection to uvicorn's keep-alive."""
        super().on_response_complete()
        self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the time limit with the connection."""
        self._stop_waiting()
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _await_request(self) -> None:
        if self._limit is None:
            self._limit = self.loop.call_later(_REQUEST_WITHIN_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _drop_oldest(self) -> None:
        idle: list[Any] = [one for one in self.connections if isinstance(one, LimitedProtocol) and one.is_idle]
        if idle:
            min(idle, key=lambda one: one.connected_at).transport.abort()


def _max_connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(_MAX_CONNECTIONS, soft // 2)
