"""Private Redis, RabbitMQ and Toxiproxy servers: free loopback ports, a folder of their own."""

from __future__ import annotations

import json
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING
from urllib.request import ProxyHandler, build_opener

from repot.brokers import open_broker
from repot.brokers.local import programs
from repot.brokers.local.launching import ATTEMPTS, LOOPBACK, Launched, free_port, start, wait_until_it_serves
from repot.brokers.local.rabbitmq_node import TICK_MS, RabbitPorts, launch_rabbitmq, write_files
from repot.brokers.local.redis_node import launch_redis
from repot.config import BrokerUrl
from repot.errors import ServerFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from repot.brokers.local.process import GuardedProcess
    from repot.brokers.port import Broker


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
            BrokerUrl.parse(self.url), management_url=self.management_url, depth_lag_s=2 * TICK_MS / 1000
        )


@contextmanager
def redis_server(*options: str, program: str = "") -> Iterator[Server]:
    """A private `redis-server` (or `valkey-server`) that keeps nothing on disk.

    `options` are added to its command line; `program` names the one to start.

    Raises:
        ProgramMissing: neither is installed.
        ServerFailed: it did not come up; with the last lines of its log.
    """
    program = program or programs.REDIS.find()

    def launch(folder: Path) -> Launched:
        return launch_redis(program, folder, free_port(), options)

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
    programs.RABBITMQ.find()

    def launch(folder: Path) -> Launched:
        ports = RabbitPorts(*(free_port() for _ in range(4)))
        write_files(folder, ports, options)
        return launch_rabbitmq(folder, ports)

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

    def launch(folder: Path) -> Launched:
        port = free_port()
        url = f"http://{LOOPBACK}:{port}"

        def identify() -> tuple[str, str]:
            with build_opener(ProxyHandler({})).open(f"{url}/version", timeout=1) as answer:
                return "Toxiproxy", str(json.load(answer)["version"])

        return Launched(start([program, "-host", LOOPBACK, "-port", str(port)], folder), port, url, identify)

    with _running("toxiproxy", launch) as server:
        yield server


@contextmanager
def _running(name: str, launch: Callable[[Path], Launched]) -> Iterator[Server]:
    """Start until it serves, in a new folder each time; stop it at the end."""
    for attempts_left in reversed(range(ATTEMPTS)):
        begun = monotonic()
        folder = Path(tempfile.mkdtemp(prefix=f"repot-{name}-"))
        launched = launch(folder)
        with launched.process:
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
                folder,
                started_in_s=monotonic() - begun,
                variables=launched.variables,
            )
            return


#: The brokers an experiment can run on, by the scheme of their address.
BROKER_SERVERS: dict[str, Callable[[], AbstractContextManager[Server]]] = {
    "redis": redis_server,
    "amqp": rabbitmq_server,
}
