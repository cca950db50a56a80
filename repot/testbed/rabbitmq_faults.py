"""Faults of every RabbitMQ: memory, consumer timeout, delivery limit, queues."""

from __future__ import annotations

import json
import re
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import amqp

from repot.brokers.rabbitmq.management import ManagementApi
from repot.testbed.nodes import Node, NodeBroker
from repot.testbed.rabbitmq_node import RabbitPorts, launch_rabbitmq, write_files
from repot.testbed.rabbitmqctl import command, evaluate
from repot.testbed.startup import LOOPBACK
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from repot.testbed.process import ReapedDirectory

_CHANGED_WITHIN_S = 20

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
    """A RabbitMQ that runs out of memory, limits deliveries, or loses a queue."""

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
        variables = self.primary.launched.variables
        definition = json.dumps({"delivery-limit": deliveries})
        try:
            command(variables, "set_policy", "--apply-to", "queues", queue, f"^{re.escape(queue)}$", definition)
            yield
        finally:
            if self.primary.runs:
                command(variables, "clear_policy", queue)

    def durable(self) -> AbstractContextManager[None]:
        """Change nothing: RabbitMQ is durable."""
        return nullcontext()

    def delete_queue(self, queue: str) -> None:
        """Delete it; RabbitMQ cancels its consumers."""
        with connected(self.primary) as connection:
            connection.channel().queue_delete(queue)


@contextmanager
def connected(node: Node) -> Iterator[Any]:
    """Connect to a node by AMQP; `Any`, because py-amqp has no annotations."""
    with closing(
        amqp.Connection(f"{LOOPBACK}:{node.port}", connect_timeout=5, read_timeout=10, write_timeout=10)
    ) as connection:
        connection.connect()
        yield connection


def management(node: Node) -> ManagementApi:
    """Return a client of a node's management API."""
    return ManagementApi(node.launched.management_url, "guest", "guest")


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
