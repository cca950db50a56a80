"""Faults of every RabbitMQ: memory, consumer timeout, delivery limit, queues."""

from __future__ import annotations

import json
import re
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from copy import copy
from typing import TYPE_CHECKING, Any, Self

import amqp

from repot.brokers.rabbitmq.management import ManagementApi, segment
from repot.testbed.nodes import Node, NodeBroker
from repot.testbed.rabbitmq_node import RabbitPorts, launch_rabbitmq, write_files
from repot.testbed.rabbitmqctl import command, evaluate
from repot.testbed.startup import LOOPBACK
from repot.testbed.vhosts import VirtualHosts
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from repot.testbed.process import ReapedDirectory

_CHANGED_WITHIN_S = 20
_DEFAULT_VHOST, _USER = "/", "guest"

#: The watermark is set, and the setting that it comes from is kept: it is what the alarm's end restores.
_ALARM = "vm_memory_monitor:set_vm_memory_high_watermark(0.0)."
_NO_ALARM = """
{ok, Usual} = application:get_env(rabbit, vm_memory_high_watermark),
vm_memory_monitor:set_vm_memory_high_watermark(Usual).
"""

#: Up to 4.2 channels check at each tick, usually once a minute; since 4.3 queues have a timer.
_SET_TIMEOUTS = """
Usual = {{application:get_env(rabbit, consumer_timeout), application:get_env(rabbit, channel_tick_interval)}},
application:set_env(rabbit, consumer_timeout, {timeout_ms}),
application:set_env(rabbit, channel_tick_interval, 1000),
Usual.
"""
_RESTORE_TIMEOUTS = """
{{Timeout, Tick}} = {usual},
[case Value of
    {{ok, Usual}} -> application:set_env(rabbit, Name, Usual);
    undefined -> application:unset_env(rabbit, Name)
end || {{Name, Value}} <- [{{consumer_timeout, Timeout}}, {{channel_tick_interval, Tick}}]].
"""


class RabbitFaults(NodeBroker):
    """A RabbitMQ that runs out of memory, limits deliveries, or loses a queue.

    Attributes:
        vhost: where clients connect, and where the queues are to which a fault applies.
    """

    vhost = _DEFAULT_VHOST

    def apart(self, name: str, options: Mapping[str, Any]) -> Self:
        """Return this RabbitMQ with a virtual host for the experiment called `name`."""
        del options
        made = copy(self)
        made.vhost = name
        made.make_vhost()
        return made

    def make_vhost(self) -> None:
        """Make the virtual host, unless it is the default one."""
        if self.vhost != _DEFAULT_VHOST:
            self._vhosts().make(self.vhost, _USER)

    def url_at(self, port: int) -> str:
        """Return its address behind another loopback port, with the virtual host."""
        url = super().url_at(port)
        return url if self.vhost == _DEFAULT_VHOST else f"{url.removesuffix('//')}/{segment(self.vhost)}"

    def clean_up(self, name: str, queues: Iterable[str]) -> None:
        """Delete the virtual host: its queues would use memory until the campaign ends."""
        super().clean_up(name, queues)
        if self.vhost != _DEFAULT_VHOST and self.primary.runs:
            self._vhosts().delete(self.vhost)

    def start_again(self, *, wiped: bool = False) -> None:
        """Start the primary again; a virtual host that went with its data is made again."""
        super().start_again(wiped=wiped)
        if wiped:
            self.make_vhost()

    def _vhosts(self) -> VirtualHosts:
        return VirtualHosts(self.primary.launched.management_url, _USER, _USER, timeout_s=_CHANGED_WITHIN_S)

    @contextmanager
    def out_of_memory(self) -> Iterator[None]:
        """Raise its memory alarm: connections that publish are blocked, on every node of a cluster."""
        node = self.primary
        try:
            # a command that fails may have raised it already
            evaluate(node.launched.variables, _ALARM)
            _await_alarm(node, raised=True)
            yield
        finally:
            if node.runs:
                evaluate(node.launched.variables, _NO_ALARM)
                _await_alarm(node, raised=False)

    @contextmanager
    def consumer_timeout(self, timeout_s: int) -> Iterator[None]:
        """Set every node's `consumer_timeout` until the node is started again."""
        usual: dict[str, str] = {}
        try:
            for node in self.nodes:
                if node.runs:
                    order = _SET_TIMEOUTS.format(timeout_ms=timeout_s * 1000)
                    usual[node.name] = evaluate(node.launched.variables, order)
            yield
        finally:
            for node in self.nodes:
                if node.runs and node.name in usual:
                    evaluate(node.launched.variables, _RESTORE_TIMEOUTS.format(usual=usual[node.name]))

    @contextmanager
    def delivery_limit(self, queue: str, deliveries: int) -> Iterator[None]:
        """Set the queue's delivery limit by a policy."""
        variables, where = self.primary.launched.variables, ("--vhost", self.vhost)
        definition = json.dumps({"delivery-limit": deliveries})
        try:
            command(variables, "set_policy", *where, "--apply-to", "queues", queue, f"^{re.escape(queue)}$", definition)
            yield
        finally:
            if self.primary.runs:
                command(variables, "clear_policy", *where, queue)

    def durable(self) -> AbstractContextManager[None]:
        """Change nothing: RabbitMQ is durable."""
        return nullcontext()

    def delete_queue(self, queue: str) -> None:
        """Delete it; RabbitMQ cancels its consumers."""
        with connected(self.primary, self.vhost) as connection:
            connection.channel().queue_delete(queue)


@contextmanager
def connected(node: Node, vhost: str = _DEFAULT_VHOST) -> Iterator[Any]:
    """Connect to a node by AMQP; `Any`, because py-amqp has no annotations."""
    where = f"{LOOPBACK}:{node.port}"
    with closing(
        amqp.Connection(where, virtual_host=vhost, connect_timeout=5, read_timeout=10, write_timeout=10)
    ) as connection:
        connection.connect()
        yield connection


def management(node: Node) -> ManagementApi:
    """Return a client of a node's management API."""
    return ManagementApi(node.launched.management_url, _USER, _USER)


def rabbitmq_node(
    home: ReapedDirectory, name: str, ports: RabbitPorts, options: Iterable[str], *, cookie: str = ""
) -> Node:
    """Return a node in a directory of its own within `home`."""
    directory = home.path / name
    directory.mkdir()
    write_files(directory, ports, options, cookie=cookie)
    return Node(name, lambda: launch_rabbitmq(directory, home, ports), directory / "db", ports.of_the_node)


def _await_alarm(node: Node, *, raised: bool) -> None:
    api = management(node)

    def is_so() -> bool:
        return bool((api.get("/api/health/checks/alarms")["status"] != "ok") is raised)

    wait_until(is_so, within_s=_CHANGED_WITHIN_S, what=f"the alarm is {'raised' if raised else 'over'}")
