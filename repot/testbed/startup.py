"""Start a server, and wait until it serves."""

from __future__ import annotations

import secrets
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repot.config import inherited_environment
from repot.errors import BrokerUnreachable, DeadlineExceeded, ServerFailed
from repot.testbed.process import ReapedProcess
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from repot.brokers.port import Broker
    from repot.testbed.process import ReapedDirectory

LOOPBACK = "127.0.0.1"

#: A port found free can be taken before the server binds it; then another is tried.
ATTEMPTS = 3
#: A node of a Redis Cluster talks to the others on a port so far above its own.
_CLUSTER_BUS = 10_000
#: Both below the ports of outgoing connections on Linux, which would take one between its choice and its use.
_PORTS = range(10_000, 32_768 - _CLUSTER_BUS)
_PORT_ATTEMPTS = 100
#: One for each port that this process was given; they end with it.
_reservations: list[socket.socket] = []
#: For a server that hangs: RabbitMQ needs five seconds of a processor, and several may start together.
_START_WITHIN_S = 120


@dataclass(frozen=True, slots=True)
class Launched:
    """A server that is starting; `identify` returns product and version, or raises while it does not serve."""

    process: ReapedProcess
    port: int
    url: str
    identify: Callable[[], tuple[str, str]]
    management_url: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)


def free_port() -> int:
    """Return a loopback port that is free at this moment, and that no outgoing connection takes.

    On Linux no other call gets it while this process lives, whichever process calls: a server may bind it seconds
    later. The port 10,000 above, on which a node of a Redis Cluster listens too, is free as well.

    Raises:
        ServerFailed: none was found.
    """
    for _ in range(_PORT_ATTEMPTS):
        port = secrets.choice(_PORTS)
        with socket.socket() as probe, socket.socket() as above, suppress(OSError):
            probe.bind((LOOPBACK, port))
            above.bind((LOOPBACK, port + _CLUSTER_BUS))
            _reserve(port)
            return port
    message = f"no port of {LOOPBACK} from {_PORTS[0]} to {_PORTS[-1]} is free"
    raise ServerFailed(message)


def _reserve(port: int) -> None:
    """Reserve a port by a name that one process of the machine can have; raises OSError if another has it."""
    if sys.platform == "linux":
        # of the abstract namespace: no file, and it ends with the process (unix(7))
        reservation = socket.socket(socket.AF_UNIX)
        try:
            reservation.bind(f"\0repot-port-{port}")
        except OSError:
            reservation.close()
            raise
        _reservations.append(reservation)


def start(
    command: list[str], directory: Path, home: ReapedDirectory, variables: Mapping[str, str] | None = None
) -> ReapedProcess:
    """Run a server in `directory`; the `home` that it is in is deleted after it has ended."""
    environment = inherited_environment(without=("RABBITMQ_", "ERL_", "WORKER_", "CELERY_")) | dict(variables or {})
    log = directory / "server.log"
    return ReapedProcess(command, log=log, environment=environment, directory=directory, home=home)


def wait_until_it_serves(name: str, launched: Launched) -> tuple[str, str]:
    """Wait until a server answers; return its product and version.

    Raises:
        ServerFailed: it ended, or does not answer; with the last lines of its log.
    """

    def look() -> tuple[str, str] | None:
        if launched.process.exit_code is not None:
            message = f"{name} exited with {launched.process.exit_code} while starting"
            raise ServerFailed(message, hint=f"Its last lines were:\n{launched.process.log_tail()}")
        with suppress(OSError, BrokerUnreachable):
            return launched.identify()
        return None

    try:
        found = wait_until(look, within_s=_START_WITHIN_S, what=f"{name} serves", poll_s=0.05)
    except DeadlineExceeded as error:
        raise ServerFailed(error.message, hint=f"Its last lines were:\n{launched.process.log_tail()}") from error
    assert found is not None
    return found


def if_ours(broker: Broker, identity: str) -> tuple[str, str]:
    """Return product and version of the server that we started.

    Raises:
        ServerFailed: another answers on its port.
    """
    if broker.identity != identity:
        message = f"another {broker.product} answers on the port meant for a private one"
        raise ServerFailed(message)
    return broker.product, broker.version
