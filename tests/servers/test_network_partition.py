"""A RabbitMQ cluster that is harmed: by a partition, in which the majority goes on, or by the loss of a node."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import amqp
import pytest
from amqp.exceptions import MessageNacked

from repot.brokers import open_broker
from repot.brokers.moving import MoveSource
from repot.chaos.faults.context import FaultContext
from repot.chaos.faults.network_partition import NetworkPartition
from repot.chaos.runner.proxies import Proxy
from repot.config import BrokerUrl
from repot.errors import BrokerUnreachable, NotApplicable
from repot.testbed import LOOPBACK, executables, standalone_redis
from repot.waiting import wait_until
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


@pytest.mark.xdist_group("cluster")
def test_a_queue_whose_node_is_down_is_neither_missing_nor_empty(three_nodes: RabbitCluster) -> None:
    """RabbitMQ answers 404, as for one that does not exist: a move ended there, without the messages of that queue."""
    queue, home = f"q-{uuid4()}", next(node for node in three_nodes.nodes if node is not three_nodes.primary)
    with closing(amqp.Connection(f"{LOOPBACK}:{home.port}", confirm_publish=True)) as connection:
        connection.connect()
        channel: Any = connection.channel()
        channel.queue_declare(queue, durable=True, auto_delete=False)
        channel.basic_publish(amqp.Message("x", delivery_mode=2), routing_key=queue)
    three_nodes.fail_over(queue)
    launched = three_nodes.primary.launched
    with closing(open_broker(BrokerUrl.parse(launched.url), management_url=launched.management_url)) as broker:
        assert isinstance(broker, MoveSource)
        with closing(broker.reader(queue, window=10, lease_s=60, moved=None)) as reader:
            with pytest.raises(BrokerUnreachable, match="down or inaccessible"):
                reader.take(10, "window")
            three_nodes.restore()
            assert len(wait_until(lambda: reader.take(10, "window").messages, within_s=60, what="it is read")) == 1
        with closing(amqp.Connection(f"{LOOPBACK}:{home.port}")) as connection:
            connection.connect()
            connection.channel().queue_delete(queue)


def test_other_brokers_have_no_partition() -> None:
    require(executables.REDIS)
    with standalone_redis() as redis:
        prepared = NetworkPartition().prepared(fault_context(test_broker=redis))
        with pytest.raises(NotApplicable, match="no network between nodes"), prepared:
            pass
