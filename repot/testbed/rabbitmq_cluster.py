"""A RabbitMQ cluster of three nodes."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import amqp

from repot.brokers.rabbitmq.management import segment
from repot.errors import BrokerUnreachable, DeadlineExceeded, ExperimentFailed, NotApplicable, ServerFailed
from repot.testbed import executables
from repot.testbed.nodes import running
from repot.testbed.rabbitmq_faults import RabbitFaults, connected, management, rabbitmq_node
from repot.testbed.rabbitmq_node import RabbitPorts
from repot.testbed.startup import free_port
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.testbed.nodes import Node
    from repot.testbed.process import ReapedDirectory

_SIZE = 3
_TOGETHER_WITHIN_S = 60


class RabbitCluster(RabbitFaults):
    """Nodes that share what is declared; a quorum queue has a member on each, a classic queue lives on one."""

    def begin(self) -> None:
        """Start all nodes, and wait until they are one cluster."""
        super().begin()
        try:
            self._await_together()
        except DeadlineExceeded as error:
            raise ServerFailed(error.message, hint=self.primary.launched.process.log_tail()) from error

    def start_again(self, *, wiped: bool = False) -> None:
        """Start the primary node again.

        Raises:
            NotApplicable: `wiped`; the others do not admit a node that lost its data.
        """
        if wiped:
            message = "a node of a cluster does not come back without its data"
            raise NotApplicable(message)
        super().start_again()
        self._await_together()

    def fail_over(self, queue: str) -> None:
        """Kill the node that leads a quorum queue, or that has the classic queue, which is then unavailable."""
        found = self._look(self._survivors()[0], queue)
        lost = self._node_called(found["node"])
        lost.kill()
        survivors = self._survivors()
        if not self.primary.runs:
            self.primary = survivors[0]
        if found.get("type") == "quorum":
            wait_until(
                lambda: self._is_led(queue, survivors), within_s=_TOGETHER_WITHIN_S, what=f"{queue} has a new leader"
            )

    def lose_replica(self, queue: str) -> None:
        """Kill a node that neither leads the queue nor is the primary."""
        home = self._node_called(self._look(self._survivors()[0], queue)["node"])
        replicas = [node for node in self._survivors() if node not in (home, self.primary)]
        if not replicas:
            message = f"no node is left but those that {queue} needs"
            raise ExperimentFailed(message)
        replicas[0].kill()

    def restore(self) -> None:
        """Start the nodes that do not run, at the same time, and wait until they are members again."""
        gone = [node for node in self.nodes if not node.runs]
        for node in gone:
            node.begin()
        for node in gone:
            node.await_serving()
        self._await_together()

    def _survivors(self) -> list[Node]:
        return [node for node in self.nodes if node.runs]

    def _node_called(self, name: str) -> Node:
        return next(node for node in self.nodes if _erlang_name(node) == name)

    def _look(self, node: Node, queue: str) -> dict[str, Any]:
        answer = management(node).get(f"/api/queues/{segment(self.vhost)}/{segment(queue)}")
        if answer is None:
            message = f"there is no queue {queue!r}"
            raise ExperimentFailed(message)
        # neither of them during an election, or while its node is down
        return {**answer, "node": answer.get("leader") or answer.get("node", "")}

    def _is_led(self, queue: str, survivors: list[Node]) -> bool:
        """Return whether a running node leads it, and it answers."""
        try:
            if self._look(self.primary, queue)["node"] not in map(_erlang_name, survivors):
                return False
            with connected(self.primary, self.vhost) as connection:
                connection.channel().queue_declare(queue, passive=True)
        except (BrokerUnreachable, amqp.AMQPError, OSError):
            return False
        return True

    def _await_together(self) -> None:
        """Wait until all running nodes know each other, and quorum queues have them as members."""
        running_nodes = self._survivors()

        def is_so() -> bool:
            try:
                return all(_knows(node, len(running_nodes)) for node in running_nodes)
            except BrokerUnreachable:
                return False

        wait_until(is_so, within_s=_TOGETHER_WITHIN_S, what="RabbitMQ's nodes are one cluster", poll_s=0.1)


def _erlang_name(node: Node) -> str:
    return f"repot-{node.port}@localhost"


def _knows(node: Node, count: int) -> bool:
    """Return whether a node knows `count` running nodes, and every quorum queue has as many members that answer."""
    api = management(node)
    if sum(bool(one["running"]) for one in api.get("/api/nodes")) != count:
        return False
    quorum = [queue for queue in api.get("/api/queues") if queue.get("type") == "quorum"]
    return all(len(queue.get("online", ())) >= min(count, len(queue.get("members", ()))) for queue in quorum)


@contextmanager
def rabbitmq_cluster(*options: str) -> Iterator[RabbitCluster]:
    """Start a private cluster of three nodes with one port mapper; `options` are lines added to each rabbitmq.conf.

    Raises:
        ProgramMissing: RabbitMQ is not installed.
        ServerFailed: it did not come up; with the last lines of a node's log.
    """
    executables.RABBITMQ.find()

    def make(home: ReapedDirectory) -> RabbitCluster:
        assert home.epmd_port is not None
        ports = [RabbitPorts(free_port(), free_port(), free_port(), home.epmd_port) for _ in range(_SIZE)]
        lines = [*_formation(ports), *options]
        cookie = secrets.token_hex(16)
        return RabbitCluster(
            [
                rabbitmq_node(home, f"rabbitmq-{name}", one, lines, cookie=cookie)
                for name, one in zip("abc", ports, strict=True)
            ]
        )

    with running("rabbitmq", make, epmd_port=free_port) as test_broker:
        yield test_broker


def _formation(ports: list[RabbitPorts]) -> Iterator[str]:
    """Yield the lines by which the nodes find each other.

    Before 4.0 the first one looks for others that wait for its lock, for 5 s by default.
    """
    yield "cluster_formation.peer_discovery_backend = classic_config"
    yield "cluster_formation.discovery_retry_limit = 4"
    yield "cluster_formation.discovery_retry_interval = 250"
    for number, one in enumerate(ports, start=1):
        yield f"cluster_formation.classic_config.nodes.{number} = {one.node}"
