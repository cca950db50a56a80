"""Running the sidecar until somebody asks it to stop."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

import uvicorn

from repot.errors import AddressTaken
from repot.healthcheck.connections import BACKLOG, PromptProtocol
from repot.healthcheck.sidecar import create_app

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.config import HealthcheckSettings, WorkerSettings

#: What is being answered may take this long when somebody asks to stop.
_GRACE_S = 1


def serve(worker: WorkerSettings, health: HealthcheckSettings, announce: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT; `announce` is called once the address is ours.

    Raises:
        AddressTaken: it cannot listen there.
    """
    listening = _listen(health.host, health.port)
    config = uvicorn.Config(
        create_app(worker, health),
        # one line a probe would drown everything else
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=_GRACE_S,
        server_header=False,
        # who asks decides what is shown, and a header could say anything
        proxy_headers=False,
        lifespan="on",
        http=PromptProtocol,
        backlog=BACKLOG,
    )
    announce()
    with listening:
        uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends at once (TCP_NODELAY) only where the socket says TCP: without it, the body of an answer may wait
    # 40 ms for the receipt of its head
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        message = f"the sidecar cannot listen on {host}, port {port}: {error.strerror}"
        taken = "HEALTHCHECK_PORT names another port." if error.errno == errno.EADDRINUSE else ""
        raise AddressTaken(message, hint=taken or "HEALTHCHECK_HOST is an address of this machine.") from error
    return listening
