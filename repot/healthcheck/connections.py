"""HTTP for probes: a client that sends its request slowly, or never, takes no connection from the others for long.

uvicorn waits for a request without end, and each connection holds a file descriptor. Once none is left the sidecar can
neither accept a probe nor read the status of its worker.
"""

from __future__ import annotations

import resource
from time import monotonic
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

#: From the beginning of a connection, or of its next request, until that request is complete.
_REQUEST_WITHIN_S = 5.0

#: No more at once, and no more than half of the file descriptors this process may have.
_MOST_CONNECTIONS = 512

#: So many may wait to be accepted, and are accepted at once.
BACKLOG = 128


class PromptProtocol(H11Protocol):
    """HTTP/1.1 with a time limit for each request, and a limit on connections: the oldest idle one goes first."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request; too many connections cost the oldest one that asks nothing."""
        self.begun = monotonic()
        self._limit: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        self._await_request()
        if len(self.connections) > _most_connections():
            self._drop_oldest()

    def data_received(self, data: bytes) -> None:
        """Wait on, unless the request is complete: each byte must not buy more time."""
        super().data_received(data)
        if self.is_idle:
            self._await_request()
        else:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Leave the connection to uvicorn's keep-alive until the next byte."""
        super().on_response_complete()
        self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
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
        idle: list[Any] = [one for one in self.connections if isinstance(one, PromptProtocol) and one.is_idle]
        if idle:
            min(idle, key=lambda one: one.begun).transport.abort()


def _most_connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else min(_MOST_CONNECTIONS, soft // 2)
