"""Run the sidecar until it receives a signal to stop."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

import uvicorn

from repot.errors import AddressTaken
from repot.healthcheck.host_check import HostCheck
from repot.healthcheck.http_limits import BACKLOG, LimitedProtocol
from repot.healthcheck.sidecar import create_app

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import FastAPI

    from repot.config import HealthcheckSettings, WorkerSettings

#: Requests in progress have so many seconds after the signal to stop.
GRACE_S = 1


def serve(worker: WorkerSettings, health: HealthcheckSettings, announce: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT; `announce` is called once clients can connect.

    Raises:
        AddressTaken: it cannot listen there.
    """
    listening = listen(health.host, health.port, "the sidecar", ("HEALTHCHECK_HOST", "HEALTHCHECK_PORT"))
    hosts = (health.host, *health.allowed_hosts)
    config = server_config(create_app(worker, health), hosts, "HEALTHCHECK_ALLOWED_HOSTS")
    announce()
    with listening:
        uvicorn.Server(config).run(sockets=[listening])


def server_config(app: FastAPI, hosts: tuple[str, ...], option: str) -> uvicorn.Config:
    """Return what each of repot's HTTP servers has in common.

    It answers to IP addresses, `localhost` and the names `hosts`; `option` is where a user adds one.
    """
    app.add_middleware(HostCheck, allowed=hosts, option=option)
    return uvicorn.Config(
        app,
        # one line for each probe would hide everything else
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=GRACE_S,
        server_header=False,
        # the client's address decides what is shown, and a header could forge it
        proxy_headers=False,
        lifespan="on",
        http=LimitedProtocol,
        backlog=BACKLOG,
    )


def listen(host: str, port: int, who: str, settings: tuple[str, str]) -> socket.socket:
    """Return a socket to which clients can connect; `who` listens, by the settings of its host and port.

    Raises:
        AddressTaken: it cannot listen there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the socket names the protocol TCP; without it, the body of a response may wait
    # 40 ms for the acknowledgement of its headers
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        # from now on the kernel keeps connections until the server accepts them
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        message = f"{who} cannot listen on {host}, port {port}: {error.strerror}"
        taken = f"Set {settings[1]} to another port." if error.errno == errno.EADDRINUSE else ""
        raise AddressTaken(message, hint=taken or f"Set {settings[0]} to an address of this machine.") from error
    return listening
