"""The port to a broker: one suite, both brokers."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from kombu import Connection, Message, Queue

from repot.brokers import Depth, open_broker
from repot.config import BrokerUrl
from repot.errors import BrokerUnreachable, DepthUnknown
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.brokers import Broker
    from repot.brokers.local import Server

PLANTED = "hunter2-s3cret"
QUORUM = {"x-queue-type": "quorum"}


@pytest.fixture
def broker(server: Server) -> Iterator[Broker]:
    with closing(server.open()) as found:
        yield found


@pytest.fixture(params=[None, QUORUM], ids=["classic", "quorum"])
def queue(server: Server, request: pytest.FixtureRequest) -> Iterator[Queue]:
    """A queue of its own, on an open connection."""
    with Connection(server.url) as connection:
        found = Queue(f"depth-{uuid4()}", queue_arguments=request.param)(connection.channel())
        found.declare()
        yield found


def fetch(queue: Queue) -> Message:
    """Take a message and do not acknowledge it."""
    message = queue.get()
    assert message is not None
    return message


def eventually(broker: Broker, queue: str, ready: int, unacked: int) -> None:
    """The broker counts so, once its statistics have caught up."""

    def counted() -> bool:
        try:
            return Depth(ready, unacked) == broker.depth(queue)
        except DepthUnknown:
            return False

    wait_until(counted, within_s=20, what=f"{queue}: ready {ready}, unacked {unacked}")


def test_what_waits_and_what_is_out_are_counted(server: Server, broker: Broker, queue: Queue) -> None:
    with Connection(server.url) as connection:
        producer = connection.Producer()
        for number in range(3):
            producer.publish({"number": number}, routing_key=queue.name)
    eventually(broker, queue.name, 3, 0)
    message = fetch(queue)
    # fetched and not acknowledged: still work that is left
    eventually(broker, queue.name, 2, 1)
    message.ack()
    eventually(broker, queue.name, 2, 0)
    for _ in range(2):
        fetch(queue).ack()
    eventually(broker, queue.name, 0, 0)
    assert broker.depth(queue.name).is_drained


def test_a_queue_nobody_declared_holds_nothing(broker: Broker) -> None:
    assert Depth(0, 0) == broker.depth("nobody-declared-this")


def test_the_product_and_version_are_known(broker: Broker) -> None:
    assert broker.product in ("Redis", "Valkey", "RabbitMQ")
    assert broker.version[0].isdigit()


@pytest.mark.parametrize("url", [f"redis://:{PLANTED}@127.0.0.1:1/0", f"amqp://user:{PLANTED}@127.0.0.1:1//"])
def test_a_broker_that_does_not_answer_is_not_empty(url: str) -> None:
    """Unknown is not zero; and the message hides the password."""
    with pytest.raises(BrokerUnreachable) as caught:
        open_broker(BrokerUrl.parse(url), management_url="http://127.0.0.1:1")
    assert caught.value.exit_code == 3
    assert PLANTED not in str(caught.value)


def test_a_virtual_host_that_is_not_there_is_not_empty(rabbitmq: Server) -> None:
    url = BrokerUrl.parse(rabbitmq.url.removesuffix("/") + "nowhere")
    with pytest.raises(BrokerUnreachable, match="no virtual host 'nowhere'"):
        open_broker(url, management_url=rabbitmq.management_url)


def test_a_wrong_password_is_an_error_of_its_own(rabbitmq: Server) -> None:
    url = BrokerUrl.parse(rabbitmq.url.replace("guest:guest", f"guest:{PLANTED}"))
    with pytest.raises(BrokerUnreachable, match="401") as caught:
        open_broker(url, management_url=rabbitmq.management_url)
    assert PLANTED not in str(caught.value)
