"""Partition the network between the nodes of a RabbitMQ cluster."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.brokers.rabbitmq.management import segment
from repot.chaos.instruments.failpoints import Phase
from repot.chaos.scenarios.scenario import Needs, Scenario
from repot.errors import NotApplicable
from repot.testbed.rabbitmq_cluster import RabbitCluster
from repot.testbed.rabbitmq_faults import management
from repot.testbed.rabbitmqctl import command, evaluate
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.faults.context import FaultContext
    from repot.testbed.nodes import Node

_ELECTED_WITHIN_S = 60

#: Erlang nodes with different cookies refuse each other; a node may use another cookie for each other node.
_CUT = "[begin erlang:set_cookie(Node, partitioned), erlang:disconnect_node(Node) end || Node <- [{others}]]."
_JOIN = "[begin erlang:set_cookie(Node, erlang:get_cookie()), net_adm:ping(Node) end || Node <- [{others}]]."


@dataclass(frozen=True, slots=True)
class NetworkPartition:
    """Cut the node that the clients use off from the other nodes, under `cluster_partition_handling = ignore`.

    The target worker stays connected to that node, as behind a load balancer that only checks whether a node answers.
    Other clients are redirected to the majority. On leaving, the nodes are connected again and the minority is
    restarted, as RabbitMQ's guide to partitions advises: with `ignore`, its default, the two sides do not join by
    themselves.
    """

    description: str = "the worker's node is partitioned from the other nodes of the cluster"

    @contextmanager
    def prepared(self, context: FaultContext) -> Iterator[None]:
        """Check that the broker is a cluster.

        Raises:
            NotApplicable: it is not.
        """
        _cluster(context)
        yield

    @contextmanager
    def injected(self, context: FaultContext) -> Iterator[None]:
        """Cut the node off and redirect the control link; join the nodes and redirect the target worker on leaving."""
        cluster = _cluster(context)
        minority, (successor, *rest) = cluster.primary, [node for node in cluster.nodes if node is not cluster.primary]
        others = ", ".join(f"'{_erlang_name(node)}'" for node in (successor, *rest))
        try:
            evaluate(minority.launched.variables, _CUT.format(others=others))
            _await_new_leader(cluster.vhost, context.queue, minority, successor)
            cluster.primary = successor
            context.control_link.redirect(successor.port)
            yield
        finally:
            context.link.redirect(successor.port)
            evaluate(minority.launched.variables, _JOIN.format(others=others))
            for step in ("stop_app", "start_app"):
                command(minority.launched.variables, step)
            cluster.restore()


def _cluster(context: FaultContext) -> RabbitCluster:
    if isinstance(context.test_broker, RabbitCluster):
        return context.test_broker
    message = f"this {context.test_broker.product} has no network between nodes that could be partitioned"
    raise NotApplicable(message)


def _await_new_leader(vhost: str, queue: str, minority: Node, successor: Node) -> None:
    """Wait until the majority has elected a leader of a quorum queue; a classic queue stays with its node."""

    def elected() -> bool:
        found = management(successor).get(f"/api/queues/{segment(vhost)}/{segment(queue)}")
        if found is None:
            return False
        return found.get("type") != "quorum" or found.get("leader") not in (None, "", _erlang_name(minority))

    wait_until(elected, within_s=_ELECTED_WITHIN_S, what=f"the majority elects a leader of {queue}")


def _erlang_name(node: Node) -> str:
    return node.launched.variables["RABBITMQ_NODENAME"]


SCENARIOS = (
    Scenario(
        "network-partition",
        "The worker's node is partitioned from the other nodes of the cluster while the task runs",
        "The minority cannot apply the ACK; the quorum queue elects a leader on the majority and delivers the task "
        "again. Before RabbitMQ 4.0 the majority cannot reach the home node of the worker's control queue (404), so "
        "the worker exits.",
        NetworkPartition(),
        Phase.RUNNING,
        lasts_s=8,
        works_s=1,
        needs=Needs.REPLICATED,
    ),
)
