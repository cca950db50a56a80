"""Private Redis, RabbitMQ and Toxiproxy servers, each on free loopback ports and in a directory of its own."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING
from urllib.request import ProxyHandler, build_opener

from repot.brokers import open_broker
from repot.config import BrokerUrl
from repot.errors import ServerFailed
from repot.testbed import executables
from repot.testbed.process import ReapedDirectory
from repot.testbed.rabbitmq_node import TICK_MS, RabbitPorts, launch_rabbitmq, write_files
from repot.testbed.redis_node import launch_redis
from repot.testbed.startup import ATTEMPTS, LOOPBACK, Launched, free_port, start, wait_until_it_serves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from repot.brokers.port import Broker
    from repot.testbed.process import ReapedProcess


#: The variable of the environment that names a broker, and the one that names a Toxiproxy's API.
BROKER_VARIABLE, TOXIPROXY_VARIABLE = "WORKER_BROKER_URL", "TOXIPROXY_URL"


@dataclass(frozen=True, slots=True)
class Server:
    """A private server that serves.

    Attributes:
        url: what a client connects to.
        management_url: RabbitMQ's HTTP API.
        directory: deleted with the server, however it ends.
        variables: the environment in which the server's own commands, such as rabbitmqctl, find it.
    """

    name: str
    version: str
    port: int
    url: str
    management_url: str
    process: ReapedProcess
    directory: Path
    started_in_s: float
    variables: Mapping[str, str]

    def url_at(self, port: int) -> str:
        """Return the same address behind another loopback port, such as a proxy's."""
        return self.url.replace(f"{LOOPBACK}:{self.port}", f"{LOOPBACK}:{port}")

    @property
    def results_url(self) -> str:
        """Return the address of the database for results beside the broker's; only for Redis."""
        return self.url.removesuffix("/0") + "/1"

    def open(self) -> Broker:
        """Connect to it; only for brokers."""
        return open_broker(
            BrokerUrl.parse(self.url), management_url=self.management_url, depth_lag_s=2 * TICK_MS / 1000
        )


@contextmanager
def redis_server(*options: str, program: str = "") -> Iterator[Server]:
    """Start a private `redis-server` (or `valkey-server`) that keeps nothing on disk.

    `options` are added to its command line; `program` names the one to start.

    Raises:
        ProgramMissing: neither is installed.
        ServerFailed: it did not come up; with the last lines of its log.
    """
    program = program or executables.REDIS.find()

    def launch(home: ReapedDirectory) -> Launched:
        return launch_redis(program, home.path, home, free_port(), options)

    with _running("redis", launch) as server:
        yield server


@contextmanager
def rabbitmq_server(*options: str) -> Iterator[Server]:
    """Start a private `rabbitmq-server` with its management API, its own node name, cookie and port mapper.

    It works as root and as any other user. Its login is guest, on loopback only.
    `options` are lines added to its rabbitmq.conf.

    Raises:
        ProgramMissing: it is not installed.
        ServerFailed: it did not come up; with the last lines of its log.
    """
    executables.RABBITMQ.find()

    def launch(home: ReapedDirectory) -> Launched:
        assert home.epmd_port is not None
        ports = RabbitPorts(free_port(), free_port(), free_port(), home.epmd_port)
        write_files(home.path, ports, options)
        return launch_rabbitmq(home.path, home, ports)

    with _running("rabbitmq", launch, epmd_port=free_port) as server:
        yield server


@contextmanager
def toxiproxy_server() -> Iterator[Server]:
    """Start a private `toxiproxy-server`; `url` is its HTTP API.

    Raises:
        ProgramMissing: it is not installed.
        ServerFailed: it did not come up; with the last lines of its log.
    """
    program = executables.TOXIPROXY.find()

    def launch(home: ReapedDirectory) -> Launched:
        port = free_port()
        url = f"http://{LOOPBACK}:{port}"

        def identify() -> tuple[str, str]:
            with build_opener(ProxyHandler({})).open(f"{url}/version", timeout=1) as answer:
                return "Toxiproxy", str(json.load(answer)["version"])

        process = start([program, "-host", LOOPBACK, "-port", str(port)], home.path, home)
        return Launched(process, port, url, identify)

    with _running("toxiproxy", launch) as server:
        yield server


@contextmanager
def _running(
    name: str, launch: Callable[[ReapedDirectory], Launched], *, epmd_port: Callable[[], int | None] = lambda: None
) -> Iterator[Server]:
    """Start a server, each attempt in a new directory; stop it at the end."""
    for attempts_left in reversed(range(ATTEMPTS)):
        begun = monotonic()
        with ReapedDirectory(f"repot-{name}-", epmd_port=epmd_port()) as home, (launched := launch(home)).process:
            try:
                product, version = wait_until_it_serves(name, launched)
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
                home.path,
                started_in_s=monotonic() - begun,
                variables=launched.variables,
            )
            return
