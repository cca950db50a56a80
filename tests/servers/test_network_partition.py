"""A partition of a RabbitMQ cluster: the minority stops working, the majority goes on, and the fault is undone."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import amqp
import pytest
from amqp.exceptions import MessageNacked

from repot.chaos.faults.context import FaultContext
from repot.chaos.faults.network_partition import NetworkPartition
from repot.chaos.runner.proxies import Proxy
from repot.errors import NotApplicable
from repot.testbed import LOOPBACK, executables, standalone_redis
from support.installed import require

if TYPE_CHECKING:
    from repot.testbed import Server
    from repot.testbed.rabbitmq_cluster import RabbitCluster

WITHIN_S = 30
#: Where no confirm is expected.
REFUSED_WITHIN_S = 5
#: How RabbitMQ refuses a message: no reply, a closed connection, or a nack.
REFUSED = (OSError, amqp.AMQPError, MessageNacked)


class Oops(Exception):
    """Raised inside the fault."""


def fault_context(**given: Any) -> FaultContext:
    return FaultContext(**{field.name: given.get(field.name) for field in fields(FaultContext)})  # type: ignore[arg-type]


def publish(port: int, within_s: float = WITHIN_S) -> None:
    """Publish to the quorum queue; return when the broker has confirmed."""
    connection = amqp.Connection(f"{LOOPBACK}:{port}", confirm_publish=True, read_timeout=within_s)
    connection.connect()
    try:
        channel: Any = connection.channel()
        channel.queue_declare("orders", durable=True, auto_delete=False, arguments={"x-queue-type": "quorum"})
        channel.basic_publish(amqp.Message("x", delivery_mode=2), routing_key="orders", confirm_timeout=within_s)
    finally:
        with suppress(OSError, amqp.AMQPError):
            connection.close()


@pytest.mark.xdist_group("cluster")
def test_the_minority_of_a_partition_accepts_nothing_and_joins_again(
    three_nodes: RabbitCluster, toxiproxy: Server
) -> None:
    cluster = three_nodes
    names, port = ("link", "control_link"), cluster.port
    links = {name: Proxy.create(toxiproxy.url, f"{name}-{port}", port) for name in names}
    context, fault = fault_context(test_broker=cluster, queue="orders", **links), NetworkPartition()
    with fault.prepared(context):
        publish(links["link"].port)
        with suppress(Oops), fault.injected(context):
            publish(links["control_link"].port)
            with pytest.raises(REFUSED):
                publish(links["link"].port, REFUSED_WITHIN_S)
            raise Oops
        publish(links["link"].port)
        for node in cluster.nodes:
            publish(node.port)
    for link in links.values():
        link.delete()


def test_other_brokers_have_no_partition() -> None:
    require(executables.REDIS)
    with standalone_redis() as redis:
        prepared = NetworkPartition().prepared(fault_context(test_broker=redis))
        with pytest.raises(NotApplicable, match="no network between nodes"), prepared:
            pass
