"""Private Redis, RabbitMQ and Toxiproxy servers: free loopback ports, a folder of their own."""

from __future__ import annotations

import json
import secrets
import socket
import tempfile
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING
from urllib.request import ProxyHandler, build_opener

from repot.brokers import open_broker
from repot.brokers.local import programs
from repot.brokers.local.process import GuardedProcess
from repot.config import BrokerUrl, inherited_environment
from repot.errors import BrokerUnreachable, DeadlineExceeded, ServerFailed
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from repot.brokers.port import Broker

LOOPBACK = "127.0.0.1"

#: A port found free can be taken before the server binds it; then another is tried.
_ATTEMPTS = 3
_START_WITHIN_S = 40

#: Private RabbitMQ servers count their messages this often, in milliseconds, instead of every 5 s.
_TICK_MS = 500


@dataclass(frozen=True, slots=True)
class Server:
    """A private server that serves.

    `url` is what a client connects to, `management_url` RabbitMQ's HTTP API;
    `folder` is deleted with the server, however it ends; `variables` are the
    environment in which the server's own commands, rabbitmqctl for example, find it.
    """

    name: str
    version: str
    port: int
    url: str
    management_url: str
    process: GuardedProcess
    folder: Path
    started_in_s: float
    variables: Mapping[str, str]

    def url_at(self, port: int) -> str:
        """The same address behind another loopback port, a proxy's for example."""
        return self.url.replace(f"{LOOPBACK}:{self.port}", f"{LOOPBACK}:{port}")

    @property
    def results_url(self) -> str:
        """The database beside the broker's, for results; only for Redis."""
        return self.url.removesuffix("/0") + "/1"

    def open(self) -> Broker:
        """A connection for looking at it; only for brokers."""
        return open_broker(
            BrokerUrl.parse(self.url), management_url=self.management_url, depth_lag_s=2 * _TICK_MS / 1000
        )


def free_port() -> int:
    """A loopback port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True, slots=True)
class _Launched:
    """A server on its way up; `identify` gives name and version, or raises while it does not serve."""

    process: GuardedProcess
    port: int
    url: str
    identify: Callable[[], tuple[str, str]]
    management_url: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def redis_server(*options: str, program: str = "") -> Iterator[Server]:
    """A private `redis-server` (or `valkey-server`) that keeps nothing on disk.

    `options` are added to its command line; `program` names the one to start.

    Raises:
        ProgramMissing: neither is installed.
        ServerFailed: it did not come up; with the last lines of its log.
    """
    program = program or programs.REDIS.find()

    def launch(folder: Path) -> _Launched:
        port = free_port()
        command = [program, "--port", str(port), "--bind", LOOPBACK, "--dir", str(folder)]
        command += ["--save", "", "--appendonly", "no", "--daemonize", "no", *options]
        url = f"redis://{LOOPBACK}:{port}/0"
        process = _start(command, folder)

        def identify() -> tuple[str, str]:
            with closing(open_broker(BrokerUrl.parse(url))) as broker:
                return _if_ours(broker, str(process.pid))

        return _Launched(process, port, url, identify)

    with _running("redis", launch) as server:
        yield server


@contextmanager
def rabbitmq_server(*options: str) -> Iterator[Server]:
    """A private `rabbitmq-server` with its management API, its own node name, cookie and port mapper.

    Works as root and as any other user. Its user is guest, on loopback alone.
    `options` are lines added to its rabbitmq.conf.

    Raises:
        ProgramMissing: it is not installed.
        ServerFailed: it did not come up; with the last lines of its log.
    """
    program = programs.RABBITMQ.find()

    def launch(folder: Path) -> _Launched:
        port, management, distribution, epmd = (free_port() for _ in range(4))
        _write_rabbitmq_files(folder, port, management, options)
        node = f"repot-{port}@localhost"
        variables = _rabbitmq_variables(folder, node, port, distribution, epmd)
        url = f"amqp://guest:guest@{LOOPBACK}:{port}//"
        address = f"http://{LOOPBACK}:{management}"

        def identify() -> tuple[str, str]:
            _ask_for_amqp(port)
            with closing(open_broker(BrokerUrl.parse(url), management_url=address)) as broker:
                return _if_ours(broker, node)

        return _Launched(_start([program], folder, variables, epmd), port, url, identify, address, variables)

    with _running("rabbitmq", launch) as server:
        yield server


@contextmanager
def toxiproxy_server() -> Iterator[Server]:
    """A private `toxiproxy-server`; `url` is its HTTP API.

    Raises:
        ProgramMissing: it is not installed.
        ServerFailed: it did not come up; with the last lines of its log.
    """
    program = programs.TOXIPROXY.find()

    def launch(folder: Path) -> _Launched:
        port = free_port()
        url = f"http://{LOOPBACK}:{port}"

        def identify() -> tuple[str, str]:
            with build_opener(ProxyHandler({})).open(f"{url}/version", timeout=1) as answer:
                return "Toxiproxy", str(json.load(answer)["version"])

        return _Launched(_start([program, "-host", LOOPBACK, "-port", str(port)], folder), port, url, identify)

    with _running("toxiproxy", launch) as server:
        yield server


@contextmanager
def _running(name: str, launch: Callable[[Path], _Launched]) -> Iterator[Server]:
    """Start until it serves, in a new folder each time; stop it at the end."""
    for attempts_left in reversed(range(_ATTEMPTS)):
        begun = monotonic()
        folder = Path(tempfile.mkdtemp(prefix=f"repot-{name}-"))
        launched = launch(folder)
        with launched.process:
            try:
                product, version = _wait_until_it_serves(name, launched)
            except ServerFailed:
                if attempts_left:
                    continue
                raise
            yield Server(
                product,
                version,
                launched.port,
                launched.url,
                launched.management_url,
                launched.process,
                folder,
                started_in_s=monotonic() - begun,
                variables=launched.variables,
            )
            return


def _wait_until_it_serves(name: str, launched: _Launched) -> tuple[str, str]:
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


def _if_ours(broker: Broker, identity: str) -> tuple[str, str]:
    """Product and version of the server we started.

    Raises:
        ServerFailed: another answers on its port.
    """
    if broker.identity != identity:
        message = f"another {broker.product} answers on the port meant for a private one"
        raise ServerFailed(message)
    return broker.product, broker.version


def _start(
    command: list[str], folder: Path, variables: Mapping[str, str] | None = None, epmd_port: int | None = None
) -> GuardedProcess:
    environment = inherited_environment(without=("RABBITMQ_", "ERL_", "WORKER_", "CELERY_")) | dict(variables or {})
    log = folder / "server.log"
    return GuardedProcess(command, log=log, environment=environment, folder=folder, remove=folder, epmd_port=epmd_port)


def _ask_for_amqp(port: int) -> None:
    """Send the protocol header, and expect the broker's first frame.

    Raises:
        OSError: there is none yet.
    """
    with socket.create_connection((LOOPBACK, port), timeout=2) as connection:
        connection.sendall(b"AMQP\x00\x00\x09\x01")
        if not connection.recv(1):
            message = "RabbitMQ closed the connection"
            raise ConnectionError(message)


def _write_rabbitmq_files(folder: Path, port: int, management_port: int, options: Iterable[str]) -> None:
    lines = (
        f"listeners.tcp.1 = {LOOPBACK}:{port}",
        f"management.tcp.ip = {LOOPBACK}",
        f"management.tcp.port = {management_port}",
        f"collect_statistics_interval = {_TICK_MS}",
        *options,
    )
    (folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
    # not in rabbitmq.conf's schema before 4.0
    (folder / "advanced.config").write_text(f"[{{rabbit, [{{quorum_tick_interval, {_TICK_MS}}}]}}].\n")
    (folder / "enabled_plugins").write_text("[rabbitmq_management].\n")
    cookie = folder / ".erlang.cookie"
    cookie.touch(mode=0o600)
    cookie.write_text(secrets.token_hex(16))


def _rabbitmq_variables(folder: Path, node: str, port: int, distribution_port: int, epmd_port: int) -> dict[str, str]:
    """The environment of a node that shares nothing with any other on this machine.

    The port mapper is on a private port, because the shared one (4369) must never
    be ended: other nodes are known by it alone.
    """
    return {
        "HOME": str(folder),
        "RABBITMQ_NODENAME": node,
        "RABBITMQ_NODE_IP_ADDRESS": LOOPBACK,
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution_port),
        "RABBITMQ_MNESIA_BASE": str(folder / "db"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "ERL_EPMD_ADDRESS": LOOPBACK,
        "ERL_EPMD_PORT": str(epmd_port),
    }


#: The brokers an experiment can run on, by the scheme of their address.
BROKER_SERVERS: dict[str, Callable[[], AbstractContextManager[Server]]] = {
    "redis": redis_server,
    "amqp": rabbitmq_server,
}
