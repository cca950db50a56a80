"""Servers that can be killed and started again at the same address, and what every ground does with them."""

from __future__ import annotations

import shutil
import socket
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar

from repot.brokers import open_broker
from repot.brokers.local.launching import ATTEMPTS, LOOPBACK, Launched, wait_until_it_serves
from repot.brokers.local.process import GuardedFolder
from repot.brokers.local.rabbitmq_node import TICK_MS
from repot.config import BrokerUrl
from repot.errors import ServerFailed
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

    from repot.brokers.port import Broker

AnyGround = TypeVar("AnyGround", bound="NodeGround")

_GONE_WITHIN_S = 20


@dataclass(slots=True)
class Node:
    """One server: a folder, ports that stay its own, and a process that comes and goes.

    Attributes:
        name: what messages call it.
        launch: starts its process.
        data: what it keeps across its process.
        ports: all that it listens on.
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
        """Where clients connect to."""
        return self.ports[0]

    def begin(self) -> None:
        """Start its process."""
        self.launched = self.launch()
        self.runs = True

    def await_serving(self) -> None:
        """Return when it answers.

        Raises:
            ServerFailed: it does not.
        """
        self.product, self.version = wait_until_it_serves(self.name, self.launched)

    def start_again(self, *, wiped: bool = False) -> None:
        """Start it anew and wait until it serves; do nothing if it runs. `wiped`: without its data."""
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
        """End it with SIGKILL, and wait until nobody listens on its ports; do nothing if it does not run."""
        if not self.runs:
            return
        self.launched.process.stop()
        self.runs = False
        wait_until(
            lambda: not any(map(_is_listened_on, self.ports)), within_s=_GONE_WITHIN_S, what=f"{self.name} is gone"
        )

    def open(self) -> Broker:
        """A connection for looking at it."""
        return open_broker(
            BrokerUrl.parse(self.launched.url),
            management_url=self.launched.management_url,
            depth_lag_s=2 * TICK_MS / 1000,
        )


class NodeGround:
    """What grounds on private servers have in common.

    As a context manager it starts the servers, and stops them.

    Attributes:
        home: the folder of all its servers.
        in_charge: the server clients connect to.
    """

    host = LOOPBACK
    #: It is nobody else's.
    token = ""
    home: Path

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Of servers that do not run yet; the first is in charge."""
        self.nodes = tuple(nodes)
        self.in_charge = self.nodes[0]

    @property
    def product(self) -> str:
        """What people call it."""
        return self.in_charge.product

    @property
    def version(self) -> str:
        """The version it states."""
        return self.in_charge.version

    @property
    def port(self) -> int:
        """Where clients connect to now."""
        return self.in_charge.port

    def url_at(self, port: int) -> str:
        """Its address behind another loopback port."""
        return self.in_charge.launched.url.replace(f"{LOOPBACK}:{self.port}", f"{LOOPBACK}:{port}")

    def transport_options(self, name: str) -> dict[str, Any]:
        """None: there is nobody else."""
        del name
        return {}

    def open(self, name: str = "") -> Broker:
        """A connection to look at it."""
        del name
        return self.in_charge.open()

    def clean_up(self, name: str, queues: Iterable[str]) -> None:
        """Nothing: it ends soon."""
        del name, queues

    def kill(self) -> None:
        """End the server in charge."""
        self.in_charge.kill()

    def start_again(self, *, wiped: bool = False) -> None:
        """Start the server in charge anew."""
        self.in_charge.start_again(wiped=wiped)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop every process of the server in charge."""
        with self.in_charge.launched.process.all_frozen():
            yield

    def mend(self) -> None:
        """Start what is gone."""
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
    name: str, make: Callable[[GuardedFolder], AnyGround], *, epmd_port: Callable[[], int | None] = lambda: None
) -> Iterator[AnyGround]:
    """A ground that serves, in a new folder; on other ports if one was taken meanwhile.

    Raises:
        ServerFailed: it did not come up; with the last lines of a server's log.
    """
    for attempts_left in reversed(range(ATTEMPTS)):
        with GuardedFolder(f"repot-{name}-", epmd_port=epmd_port()) as home, ExitStack() as started:
            try:
                ground = make(home)
                ground.home = home.path
                started.enter_context(ground)
            except ServerFailed:
                if attempts_left:
                    continue
                raise
            yield ground
            return


def _is_listened_on(port: int) -> bool:
    with closing(socket.socket()) as probe:
        probe.settimeout(1)
        return probe.connect_ex((LOOPBACK, port)) == 0
