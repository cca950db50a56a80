"""A RabbitMQ node that shares nothing with any other on this machine."""

from __future__ import annotations

import secrets
import socket
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.brokers import open_broker
from repot.brokers.local import programs
from repot.brokers.local.launching import LOOPBACK, Launched, if_ours, start
from repot.config import BrokerUrl

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from repot.brokers.local.process import GuardedFolder

#: Private RabbitMQ servers count their messages this often, in milliseconds, instead of every 5 s.
TICK_MS = 500


@dataclass(frozen=True, slots=True)
class RabbitPorts:
    """Where a node listens, and its port mapper."""

    amqp: int
    management: int
    distribution: int
    epmd: int

    @property
    def node(self) -> str:
        """The node's name: nobody else has it, as nobody else has its port."""
        return f"repot-{self.amqp}@localhost"

    @property
    def of_the_node(self) -> tuple[int, ...]:
        """Those that close when the node ends; the port mapper stays."""
        return self.amqp, self.management, self.distribution


def launch_rabbitmq(folder: Path, ports: RabbitPorts, *, home: GuardedFolder | None = None) -> Launched:
    """Start a node from the files that `write_files` left in `folder`.

    In a `home` of several nodes, which ends their port mapper itself.
    """
    variables = _variables(folder, ports)
    url = f"amqp://guest:guest@{LOOPBACK}:{ports.amqp}//"
    address = f"http://{LOOPBACK}:{ports.management}"

    def identify() -> tuple[str, str]:
        _ask_for_amqp(ports.amqp)
        with closing(open_broker(BrokerUrl.parse(url), management_url=address)) as broker:
            return if_ours(broker, ports.node)

    process = start([programs.RABBITMQ.find()], folder, variables, None if home else ports.epmd, home=home)
    return Launched(process, ports.amqp, url, identify, address, variables)


def write_files(folder: Path, ports: RabbitPorts, options: Iterable[str], *, cookie: str = "") -> None:
    """A node's configuration and its cookie; `options` are further lines of rabbitmq.conf."""
    lines = (
        f"listeners.tcp.1 = {LOOPBACK}:{ports.amqp}",
        f"management.tcp.ip = {LOOPBACK}",
        f"management.tcp.port = {ports.management}",
        f"collect_statistics_interval = {TICK_MS}",
        *options,
    )
    (folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
    # not in rabbitmq.conf's schema before 4.0
    (folder / "advanced.config").write_text(f"[{{rabbit, [{{quorum_tick_interval, {TICK_MS}}}]}}].\n")
    (folder / "enabled_plugins").write_text("[rabbitmq_management].\n")
    file = folder / ".erlang.cookie"
    file.touch(mode=0o600)
    file.write_text(cookie or secrets.token_hex(16))


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


def _variables(folder: Path, ports: RabbitPorts) -> Mapping[str, str]:
    """The environment of the node and of its commands.

    The port mapper is on a private port, because the shared one (4369) must never
    be ended: other nodes are known by it alone.
    """
    return {
        "HOME": str(folder),
        "RABBITMQ_NODENAME": ports.node,
        "RABBITMQ_NODE_IP_ADDRESS": LOOPBACK,
        "RABBITMQ_NODE_PORT": str(ports.amqp),
        "RABBITMQ_DIST_PORT": str(ports.distribution),
        "RABBITMQ_MNESIA_BASE": str(folder / "db"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "ERL_EPMD_ADDRESS": LOOPBACK,
        "ERL_EPMD_PORT": str(ports.epmd),
    }
