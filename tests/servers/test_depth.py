"""The port to a broker: one suite, both brokers."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from kombu import Connection, Exchange, Message, Queue
from redis import Redis

from repot.brokers import Depth, open_broker
from repot.config import BrokerUrl, inherited_environment
from repot.errors import BrokerUnreachable, DepthUnknown
from repot.testbed import LOOPBACK, ReapedProcess, free_port
from repot.upstream import delay_queues
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from repot.brokers import Broker
    from repot.testbed import Server
    from support.shop import Shop

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


@pytest.mark.promise("redis-classic", "rabbitmq-quorum")
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


def test_a_message_that_a_worker_has_claimed_is_counted(
    own: Server, redis: Server, opened: Callable[..., Shop]
) -> None:
    """By the queue that it came from; and no more once it is settled."""
    shop = opened(own, redis, app="support.held_app", dead_letter_queue="")
    shop.start(1)
    shop.send("hold", "task", str(shop.directory / "go"))
    shop.await_effects("begun task")
    with closing(own.open()) as broker:
        assert Depth(0, 1) == broker.depth(shop.name)
        assert Depth(0, 0) == broker.depth("another")
        (shop.directory / "go").touch()
        eventually(broker, shop.name, 0, 0)


def test_what_is_delayed_is_still_to_come(rabbitmq: Server) -> None:
    """Of a queue that delayed messages reach; RabbitMQ does not say whose they are."""
    exchange = Exchange(f"x-{uuid4()}", type="topic")
    bound, plain = Queue(f"bound-{uuid4()}", exchange, routing_key="key", queue_arguments=QUORUM), Queue(f"p-{uuid4()}")
    with Connection(rabbitmq.url) as connection, closing(rabbitmq.open()) as broker:
        delay_queues.declare(connection, "quorum")
        channel = connection.channel()
        for queue in (bound, plain):
            queue(channel).declare()
        delay_queues.bind_by_exchange(connection, bound)
        eventually(broker, bound.name, 0, 0)
        delay_s = 12
        connection.Producer().publish(
            {},
            exchange=delay_queues.level_name(27),
            routing_key=delay_queues.delayed_key(delay_s, "key"),
            delivery_mode=2,
        )
        counted = Depth(0, 0, delayed=1)
        wait_until(lambda: broker.depth(bound.name) == counted, within_s=delay_s, what="it is counted as delayed")
        assert not counted.is_drained
        assert broker.depth(plain.name).is_drained
        eventually(broker, bound.name, 1, 0)


def test_a_queue_that_is_not_declared_holds_nothing(broker: Broker) -> None:
    assert Depth(0, 0) == broker.depth("never-declared")


def test_the_product_and_version_are_known(broker: Broker) -> None:
    assert broker.product in ("Redis", "Valkey", "RabbitMQ")
    assert broker.version[0].isdigit()


@pytest.mark.promise
@pytest.mark.parametrize("url", [f"redis://:{PLANTED}@127.0.0.1:1/0", f"amqp://user:{PLANTED}@127.0.0.1:1//"])
def test_a_broker_that_does_not_answer_is_not_empty(url: str) -> None:
    """Unknown is not zero; and the message hides the password."""
    with pytest.raises(BrokerUnreachable) as caught:
        open_broker(BrokerUrl.parse(url), management_url="http://127.0.0.1:1")
    assert caught.value.exit_code == 3
    assert PLANTED not in str(caught.value)


def test_a_virtual_host_that_is_not_there_is_not_empty(rabbitmq: Server) -> None:
    url = BrokerUrl.parse(rabbitmq.url.removesuffix("/") + "nowhere")
    with pytest.raises(BrokerUnreachable, match=r"no virtual host 't-.*nowhere'"):
        open_broker(url, management_url=rabbitmq.management_url)


def test_a_wrong_password_is_an_error_of_its_own(rabbitmq: Server) -> None:
    url = BrokerUrl.parse(rabbitmq.url.replace("guest:guest", f"guest:{PLANTED}"))
    with pytest.raises(BrokerUnreachable, match="401") as caught:
        open_broker(url, management_url=rabbitmq.management_url)
    assert PLANTED not in str(caught.value)


@pytest.mark.parametrize("kind", ["direct", "topic"])
def test_what_is_held_on_redis_is_of_the_queue_and_not_of_the_key(redis: Server, kind: str) -> None:
    """A queue is bound by any key; two that get the same key may both be its own."""
    mark = uuid4()
    exchange = Exchange(f"x-{mark}", type=kind)
    keys = {"orders": "new.order", "mails": "new.mail", "copies": "new.mail"}
    with Connection(redis.url) as connection, closing(redis.open()) as broker:
        channel = connection.channel()
        queues = {}
        for name, key in keys.items():
            pattern = "new.*" if kind == "topic" and name == "orders" else key
            queues[name] = Queue(f"{name}-{mark}", exchange, routing_key=pattern)(channel)
            queues[name].declare()
        producer = connection.Producer()
        producer.publish({"n": 1}, exchange=exchange, routing_key="new.order")
        held = fetch(queues["orders"])
        assert Depth(0, 1) == broker.depth(queues["orders"].name)
        assert Depth(0, 0) == broker.depth(queues["mails"].name)
        assert Depth(0, 0) == broker.depth("new.order")
        producer.publish({"n": 2}, exchange=exchange, routing_key="new.mail")
        also = fetch(queues["mails"])
        assert Depth(0, 1) == broker.depth(queues["mails"].name)
        assert Depth(1, 1) == broker.depth(queues["copies"].name)
        # its queue is unknown now: it counts for every queue
        with Redis.from_url(redis.url) as client:
            client.delete(f"_kombu.binding.x-{mark}")
        assert not broker.depth(f"another-{mark}").is_drained
        held.ack()
        also.ack()
        assert Depth(0, 0) == broker.depth(f"another-{mark}")


def test_what_is_held_on_redis_does_not_travel(redis: Server) -> None:
    """Neither the first time nor later; the sent bytes of the server tell."""
    name = f"large-{uuid4()}"
    with Connection(redis.url) as connection, closing(redis.open()) as broker, Redis.from_url(redis.url) as client:
        queue = Queue(name)(connection.channel())
        queue.declare()
        for _ in range(30):
            connection.Producer().publish({"text": "}, " + "x" * 1_000_000}, routing_key=name)
        held = [fetch(queue) for _ in range(30)]
        before = client.info("stats")["total_net_output_bytes"]
        assert Depth(0, 30) == broker.depth(name)
        assert Depth(0, 30) == broker.depth(name)
        assert client.info("stats")["total_net_output_bytes"] - before < 300_000
        for message in held:
            message.ack()
        assert broker.depth(name).is_drained


def test_a_foreign_value_among_the_held_is_not_empty(redis: Server) -> None:
    with Redis.from_url(redis.url) as client, closing(redis.open()) as broker:
        client.hset("unacked", "tag", "no message of kombu's")
        try:
            with pytest.raises(DepthUnknown, match="not one of kombu's"):
                broker.depth("any")
        finally:
            client.hdel("unacked", "tag")
        assert broker.depth("any").is_drained


def test_the_master_behind_sentinel_is_counted(redis: Server, tmp_path: Path) -> None:
    port = free_port()
    configuration = tmp_path / "sentinel.conf"
    configuration.write_text(
        f"port {port}\nbind {LOOPBACK}\ndir {tmp_path}\nsentinel monitor shop {LOOPBACK} {redis.port} 1\n"
    )
    command = ["redis-server", str(configuration), "--sentinel"]
    url = BrokerUrl.parse(f"sentinel://{LOOPBACK}:1/0;sentinel://{LOOPBACK}:{port}/0")
    name = f"behind-{uuid4()}"
    with Connection(redis.url) as connection:
        connection.Producer().publish({}, routing_key=name, declare=[Queue(name)])
    with ReapedProcess(command, log=tmp_path / "log", environment=inherited_environment(without=())):

        def counted() -> bool:
            try:
                with closing(open_broker(url, transport_options={"master_name": "shop"})) as broker:
                    return broker.depth(name).ready == 1
            except BrokerUnreachable:
                return False

        wait_until(counted, within_s=20, what="the sentinel knows its master")
        with pytest.raises(BrokerUnreachable, match="master is missing") as caught:
            open_broker(url)
        assert "WORKER_SENTINEL_MASTER" in caught.value.hint
        with pytest.raises(BrokerUnreachable, match="No master found"):
            open_broker(url, transport_options={"master_name": "another"})
