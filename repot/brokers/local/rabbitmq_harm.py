"""Harm that is the same on every RabbitMQ: memory, patience, queues."""

from __future__ import annotations

import json
import re
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import amqp

from repot.brokers.local.launching import LOOPBACK
from repot.brokers.local.nodes import Node, NodeGround
from repot.brokers.local.rabbitmq_node import RabbitPorts, launch_rabbitmq, write_files
from repot.brokers.local.rabbitmqctl import command, evaluate
from repot.brokers.management import ManagementApi
from repot.errors import Inapplicable
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from repot.brokers.local.process import GuardedFolder

_CHANGED_WITHIN_S = 20

#: The watermark is set without a change of the setting it comes from, so that its undoing needs no memory.
_ALARM = "vm_memory_monitor:set_vm_memory_high_watermark(0.0)."
_NO_ALARM = """
{ok, Usual} = application:get_env(rabbit, vm_memory_high_watermark),
vm_memory_monitor:set_vm_memory_high_watermark(Usual).
"""

#: Up to 4.2 channels look at each tick, usually once a minute; since 4.3 queues know the moment.
_IMPATIENT = """
Usual = {{application:get_env(rabbit, consumer_timeout), application:get_env(rabbit, channel_tick_interval)}},
application:set_env(rabbit, consumer_timeout, {timeout_ms}),
application:set_env(rabbit, channel_tick_interval, 1000),
Usual.
"""
_PATIENT = """
{{Timeout, Tick}} = {usual},
[case Value of
    {{ok, Usual}} -> application:set_env(rabbit, Name, Usual);
    undefined -> application:unset_env(rabbit, Name)
end || {{Name, Value}} <- [{{consumer_timeout, Timeout}}, {{channel_tick_interval, Tick}}]].
"""


class RabbitHarm(NodeGround):
    """A RabbitMQ that is starved, made impatient, or loses a queue."""

    @contextmanager
    def short_of_memory(self) -> Iterator[None]:
        """Raise its memory alarm: connections that publish are blocked, on every node of a cluster."""
        node = self.in_charge
        try:
            # what fails on the way may have raised it
            evaluate(node.launched.variables, _ALARM)
            _await_alarm(node, raised=True)
            yield
        finally:
            if node.runs:
                evaluate(node.launched.variables, _NO_ALARM)
                _await_alarm(node, raised=False)

    def evicting(self) -> AbstractContextManager[None]:
        """Refused."""
        message = "RabbitMQ throws no message away for want of memory"
        raise Inapplicable(message)

    @contextmanager
    def impatient(self, timeout_s: int) -> Iterator[None]:
        """Set every node's `consumer_timeout`, as long as it is not started anew."""
        usual: dict[str, str] = {}
        try:
            for node in self.nodes:
                if node.runs:
                    order = _IMPATIENT.format(timeout_ms=timeout_s * 1000)
                    usual[node.name] = evaluate(node.launched.variables, order)
            yield
        finally:
            for node in self.nodes:
                if node.runs and node.name in usual:
                    evaluate(node.launched.variables, _PATIENT.format(usual=usual[node.name]))

    @contextmanager
    def giving_up(self, queue: str, deliveries: int) -> Iterator[None]:
        """Set the queue's delivery limit by a policy."""
        variables = self.in_charge.launched.variables
        definition = json.dumps({"delivery-limit": deliveries})
        try:
            command(variables, "set_policy", "--apply-to", "queues", queue, f"^{re.escape(queue)}$", definition)
            yield
        finally:
            if self.in_charge.runs:
                command(variables, "clear_policy", queue)

    def durable(self) -> AbstractContextManager[None]:
        """It is."""
        return nullcontext()

    def delete_queue(self, queue: str) -> None:
        """Delete it; its consumers are told."""
        with connected(self.in_charge) as connection:
            connection.channel().queue_delete(queue)


@contextmanager
def connected(node: Node) -> Iterator[Any]:
    """An AMQP connection to a node; `Any`, because py-amqp has no annotations."""
    with closing(
        amqp.Connection(f"{LOOPBACK}:{node.port}", connect_timeout=5, read_timeout=10, write_timeout=10)
    ) as connection:
        connection.connect()
        yield connection


def management(node: Node) -> ManagementApi:
    """A node's management API."""
    return ManagementApi(node.launched.management_url, "guest", "guest")


def rabbitmq_node(
    home: GuardedFolder, name: str, ports: RabbitPorts, options: Iterable[str], *, cookie: str = ""
) -> Node:
    """A node in a folder of its own within `home`."""
    folder = home.path / name
    folder.mkdir()
    write_files(folder, ports, options, cookie=cookie)
    return Node(name, lambda: launch_rabbitmq(folder, ports, home=home), folder / "db", ports.of_the_node)


def _await_alarm(node: Node, *, raised: bool) -> None:
    api = management(node)

    def is_so() -> bool:
        return bool((api.get("/api/health/checks/alarms")["status"] != "ok") is raised)

    wait_until(is_so, within_s=_CHANGED_WITHIN_S, what=f"the alarm is {'raised' if raised else 'over'}")
