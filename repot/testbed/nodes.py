"""Servers that can be killed and started again at the same address, and the part common to all private test brokers."""

from __future__ import annotations

import shutil
import socket
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from repot.brokers import open_broker
from repot.config import BrokerUrl
from repot.errors import ServerFailed
from repot.testbed.process import ReapedDirectory
from repot.testbed.rabbitmq_node import TICK_MS
from repot.testbed.startup import ATTEMPTS, LOOPBACK, Launched, wait_until_it_serves
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from repot.brokers.port import Broker

AnyTestBroker = TypeVar("AnyTestBroker", bound="NodeBroker")

_GONE_WITHIN_S = 20


@dataclass(slots=True)
class Node:
    """One server: a directory, fixed ports, and a process that comes and goes.

    Attributes:
        name: its name in messages.
        launch: starts its process.
        data: the directory of what survives its process.
        ports: all ports that it listens on; clients connect to the first.
    """

    name: str
    launch: Callable[[], Launched]
    data: Path
    ports: tuple[int, ...]
    launched: Launched = field(init=False)
    product: str = field(default="", init=False)
    version: str = field(default="", init=False)
    runs: bool = field(default=False, init=False)

    @property
    def port(self) -> int:
        """Return the port that clients connect to."""
        return self.ports[0]

    def begin(self) -> None:
        """Start its process."""
        self.launched = self.launch()
        self.runs = True

    def await_serving(self) -> None:
        """Wait until it answers.

        Raises:
            ServerFailed: it does not answer.
        """
        self.product, self.version = wait_until_it_serves(self.name, self.launched)

    def start_again(self, *, wiped: bool = False) -> None:
        """Start it again and wait until it serves; do nothing if it runs. `wiped`: without its data."""
        if self.runs:
            return
        if wiped:
            shutil.rmtree(self.data, ignore_errors=True)
            self.data.mkdir(exist_ok=True)
        for attempts_left in reversed(range(ATTEMPTS)):
            self.begin()
            try:
                self.await_serving()
            except ServerFailed:
                # a client's own port can be the server's for a moment, while the server is away
                self.kill()
                if not attempts_left:
                    raise
            else:
                return

    def kill(self) -> None:
        """End it with SIGKILL, and wait until its ports are closed; do nothing if it does not run."""
        if not self.runs:
            return
        self.launched.process.stop()
        self.runs = False
        wait_until(
            lambda: not any(map(is_listened_on, self.ports)), within_s=_GONE_WITHIN_S, what=f"{self.name} is gone"
        )

    def open(self, url: str = "", options: Mapping[str, Any] | None = None) -> Broker:
        """Connect to it; `url` is its address with another virtual host."""
        return open_broker(
            BrokerUrl.parse(url or self.launched.url),
            management_url=self.launched.management_url,
            depth_lag_s=2 * TICK_MS / 1000,
            transport_options=options,
        )


class NodeBroker:
    """The common part of test brokers on private servers.

    As a context manager it starts the servers, and stops them.

    Attributes:
        home: the directory of all its servers.
        primary: the server that clients connect to.
    """

    host = LOOPBACK
    #: No other client uses it.
    token = ""
    home: Path
    #: The transport options by which its clients name their keys.
    options: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Take servers that do not run yet; the first is the primary."""
        self.nodes = tuple(nodes)
        self.primary = self.nodes[0]

    @property
    def product(self) -> str:
        """Return the product's name."""
        return self.primary.product

    @property
    def version(self) -> str:
        """Return the version that it states."""
        return self.primary.version

    @property
    def port(self) -> int:
        """Return the port that clients connect to now."""
        return self.primary.port

    def url_at(self, port: int) -> str:
        """Return its address behind another loopback port."""
        return self.primary.launched.url.replace(f"{LOOPBACK}:{self.port}", f"{LOOPBACK}:{port}")

    def transport_options(self, name: str) -> dict[str, Any]:
        """Return none: there is no other client."""
        del name
        return {}

    def open(self, name: str = "") -> Broker:
        """Connect to the primary, as its clients do."""
        del name
        return self.primary.open(self.url_at(self.port), self.options)

    def clean_up(self, name: str, queues: Iterable[str]) -> None:
        """Do nothing: it ends soon."""
        del name, queues

    def kill(self) -> None:
        """End the primary."""
        self.primary.kill()

    def start_again(self, *, wiped: bool = False) -> None:
        """Start the primary again."""
        self.primary.start_again(wiped=wiped)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop every process of the primary."""
        with self.primary.launched.process.all_frozen():
            yield

    def restore(self) -> None:
        """Start the servers that do not run."""
        for node in self.nodes:
            node.start_again()

    def begin(self) -> None:
        """Start all servers, at the same time."""
        for node in self.nodes:
            node.begin()
        for node in self.nodes:
            node.await_serving()

    def end(self) -> None:
        """Stop all servers."""
        for node in self.nodes:
            if node.runs:
                node.launched.process.stop()
                node.runs = False

    def __enter__(self) -> Self:
        """Start.

        Raises:
            ServerFailed: a server did not come up; none stays.
        """
        try:
            self.begin()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.end()


@contextmanager
def running(
    name: str, make: Callable[[ReapedDirectory], AnyTestBroker], *, epmd_port: Callable[[], int | None] = lambda: None
) -> Iterator[AnyTestBroker]:
    """Start a test broker in a new directory; on other ports if one was taken meanwhile.

    Raises:
        ServerFailed: it did not come up; with the last lines of a server's log.
    """
    for attempts_left in reversed(range(ATTEMPTS)):
        with ReapedDirectory(f"repot-{name}-", epmd_port=epmd_port()) as home, ExitStack() as started:
            try:
                test_broker = make(home)
                test_broker.home = home.path
                started.enter_context(test_broker)
            except ServerFailed:
                if attempts_left:
                    continue
                raise
            yield test_broker
            return


def is_listened_on(port: int) -> bool:
    """Return whether a process accepts connections at a loopback port."""
    with closing(socket.socket()) as probe:
        probe.settimeout(1)
        return probe.connect_ex((LOOPBACK, port)) == 0
