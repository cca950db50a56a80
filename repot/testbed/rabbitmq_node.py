"""Start a RabbitMQ node that shares nothing with any other on this machine."""

from __future__ import annotations

import secrets
import socket
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.brokers import open_broker
from repot.config import BrokerUrl
from repot.testbed import executables
from repot.testbed.startup import LOOPBACK, Launched, if_ours, start

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from repot.testbed.process import ReapedDirectory

#: A private server is one of several on a machine: its schedulers do not spin while they wait for work, as RabbitMQ's
#: guide to its runtime advises there. A start costs a fifth less of a processor.
_ERLANG = "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none"

#: How often private RabbitMQ servers count their messages, in milliseconds; 5000 by default.
TICK_MS = 500


@dataclass(frozen=True, slots=True)
class RabbitPorts:
    """The ports of a node and of its port mapper."""

    amqp: int
    management: int
    distribution: int
    epmd: int

    @property
    def node(self) -> str:
        """Return the node's name, unique on this machine as its port is."""
        return f"repot-{self.amqp}@localhost"

    @property
    def of_the_node(self) -> tuple[int, ...]:
        """Return the ports that close when the node ends; the port mapper stays."""
        return self.amqp, self.management, self.distribution


def launch_rabbitmq(directory: Path, home: ReapedDirectory, ports: RabbitPorts) -> Launched:
    """Start a node from the files that `write_files` left in `directory`; `home` ends the port mapper."""
    variables = _variables(directory, ports)
    url = f"amqp://guest:guest@{LOOPBACK}:{ports.amqp}//"
    address = f"http://{LOOPBACK}:{ports.management}"

    def identify() -> tuple[str, str]:
        _ask_for_amqp(ports.amqp)
        with closing(open_broker(BrokerUrl.parse(url), management_url=address)) as broker:
            return if_ours(broker, ports.node)

    process = start([executables.RABBITMQ.find()], directory, home, variables)
    return Launched(process, ports.amqp, url, identify, address, variables)


def write_files(directory: Path, ports: RabbitPorts, options: Iterable[str], *, cookie: str = "") -> None:
    """Write a node's configuration and its cookie; `options` are further lines of rabbitmq.conf."""
    lines = (
        f"listeners.tcp.1 = {LOOPBACK}:{ports.amqp}",
        f"management.tcp.ip = {LOOPBACK}",
        f"management.tcp.port = {ports.management}",
        f"collect_statistics_interval = {TICK_MS}",
        *options,
    )
    (directory / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
    # not in rabbitmq.conf's schema before 4.0
    (directory / "advanced.config").write_text(f"[{{rabbit, [{{quorum_tick_interval, {TICK_MS}}}]}}].\n")
    (directory / "enabled_plugins").write_text("[rabbitmq_management].\n")
    file = directory / ".erlang.cookie"
    file.touch(mode=0o600)
    file.write_text(cookie or secrets.token_hex(16))


def _ask_for_amqp(port: int) -> None:
    """Send the protocol header, and wait for the broker's first frame.

    Raises:
        OSError: it did not send one yet.
    """
    with socket.create_connection((LOOPBACK, port), timeout=2) as connection:
        connection.sendall(b"AMQP\x00\x00\x09\x01")
        if not connection.recv(1):
            message = "RabbitMQ closed the connection"
            raise ConnectionError(message)


def _variables(directory: Path, ports: RabbitPorts) -> Mapping[str, str]:
    """Return the environment of the node and of its commands.

    The port mapper has a private port, because the shared one (4369) must never be ended: other nodes are known only
    to it.
    """
    return {
        "HOME": str(directory),
        "RABBITMQ_NODENAME": ports.node,
        "RABBITMQ_NODE_IP_ADDRESS": LOOPBACK,
        "RABBITMQ_NODE_PORT": str(ports.amqp),
        "RABBITMQ_DIST_PORT": str(ports.distribution),
        "RABBITMQ_MNESIA_BASE": str(directory / "db"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_PID_FILE": str(directory / "pid"),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(directory / "advanced.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _ERLANG,
        "ERL_EPMD_ADDRESS": LOOPBACK,
        "ERL_EPMD_PORT": str(ports.epmd),
    }
