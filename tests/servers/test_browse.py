"""Going through a queue: one suite, both brokers, and every kind of queue on RabbitMQ."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from kombu import Connection, Queue

from repot.brokers.browse import Browsed, Discard, Forward, Keep
from repot.brokers.message import Message, publish, to_redis
from repot.config.queues import DeadLetterQueue
from repot.errors import FactUnknown, Unroutable
from repot.waiting import wait_until
from support import forked
from support.messages import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.brokers import Broker
    from repot.brokers.browse import Decision
    from repot.testbed import Server

LOOKS = 30


@pytest.fixture
def broker(server: Server) -> Iterator[Broker]:
    with closing(server.open()) as found:
        yield found


@pytest.fixture
def declared(server: Server) -> Iterator[Callable[..., str]]:
    """Declare a queue of one's own and put some messages into it."""
    with Connection(server.url, transport_options={"confirm_publish": True}) as connection:

        def declare(number: int = 0, queue: Queue | None = None) -> str:
            found = queue or Queue(f"browse-{uuid4()}")
            found(connection.default_channel).declare()
            for place in range(number):
                publish(connection.default_channel, sample(place), found.name)
            return str(found.name)

        yield declare


def sample(place: int, **properties: Any) -> Message:
    """A message that can be told from others."""
    return Message(
        f"{place}".encode(), "text/plain", "utf-8", {"place": place}, {"priority": 0, "delivery_mode": 2} | properties
    )


def seen(broker: Broker, queue: str) -> list[Message]:
    """What lies there, oldest first."""
    found: list[Message] = []

    def see(message: Message) -> Decision:
        found.append(message)
        return Keep()

    broker.browse(queue, see)
    return found


@pytest.mark.parametrize("kind", ["ours", "quorum", "classic", "limited"])
def test_thirty_looks_lose_nothing(broker: Broker, declared: Callable[..., str], kind: str) -> None:
    """RabbitMQ's quorum queues drop, since 4.0, what was returned 20 times; with an argument sooner."""
    name = f"browse-{uuid4()}"
    queues = {
        "ours": DeadLetterQueue(name, "quorum"),
        "quorum": Queue(name, queue_arguments={"x-queue-type": "quorum"}),
        "classic": Queue(name),
        "limited": Queue(name, queue_arguments={"x-queue-type": "quorum", "x-delivery-limit": 3}),
    }
    declared(5, queues[kind])
    for _ in range(LOOKS):
        wait_until(lambda: len(seen(broker, name)) == 5, within_s=30, what="the last look has given them back")
    assert sorted(f"{place}".encode() for place in range(5)) == sorted(one.body for one in seen(broker, name))


@pytest.mark.promise
def test_each_message_meets_its_decision(broker: Broker, declared: Callable[..., str]) -> None:
    queue, other = declared(6), declared()

    def decide(message: Message) -> Decision:
        place = message.headers["place"]
        if place % 3 == 0:
            return Keep()
        return Discard() if place % 3 == 1 else Forward(Message(b"new", headers={"place": place}), other)

    assert Browsed(kept=2, forwarded=2, discarded=2) == broker.browse(queue, decide)
    assert [one.headers["place"] for one in seen(broker, queue)] == [0, 3]
    assert [(one.body, one.headers["place"]) for one in seen(broker, other)] == [(b"new", 2), (b"new", 5)]


def test_a_forwarded_message_is_one_of_kombus(server: Server, broker: Broker, declared: Callable[..., str]) -> None:
    """Another client reads it with kombu alone, priority and all."""
    queue, other = declared(), declared()
    with Connection(server.url, transport_options={"confirm_publish": True}) as connection:
        sent = sample(1, priority=6, correlation_id="c", reply_to="r")
        publish(connection.default_channel, sent, queue)
        broker.browse(queue, lambda message: Forward(message, other))
        theirs: Any = Queue(other)(connection.default_channel)
        found = wait_until(theirs.get, within_s=30, what="the message is there")
        assert (found.payload, found.content_type, found.headers) == ("1", "text/plain", {"place": 1})
        assert tuple(found.properties[name] for name in ("priority", "correlation_id", "reply_to")) == (6, "c", "r")
        found.ack()


def test_priorities_are_kept_on_redis(redis: Server) -> None:
    """A queue is a list for each step; options name the keys."""
    from repot.brokers import open_broker
    from repot.config import BrokerUrl

    options = {"global_keyprefix": f"{uuid4()}:", "sep": ":", "priority_steps": [0, 2, 8]}
    with (
        closing(open_broker(BrokerUrl.parse(redis.url), transport_options=options)) as broker,
        Connection(redis.url, transport_options=options) as connection,
    ):
        for priority in (0, 3, 9):
            publish(connection.default_channel, sample(priority, priority=priority), "from")
        broker.browse("from", lambda message: Forward(message, "to"))
        channel: Any = connection.default_channel
        keys = channel.client.keys(f"{options['global_keyprefix']}to*")
        assert {b"to", b"to:2", b"to:8"} == {bytes(key).partition(b":")[2] for key in keys}
        assert broker.depth("to").ready == 3


def test_forwarding_to_no_queue_removes_nothing(rabbitmq: Server) -> None:
    """On Redis any name is a queue: a list is there once something is in it."""
    queue = Queue(f"browse-{uuid4()}")
    with closing(rabbitmq.open()) as broker, Connection(rabbitmq.url) as connection:
        queue(connection.default_channel).declare()
        for place in range(3):
            publish(connection.default_channel, sample(place), queue.name)
        wait_until(lambda: len(seen(broker, queue.name)) == 3, within_s=30, what="they are there")
        with pytest.raises(Unroutable, match="nowhere"):
            broker.browse(queue.name, lambda message: Forward(message, "nowhere"))
        wait_until(lambda: len(seen(broker, queue.name)) == 3, within_s=30, what="they are back")


def test_forwarding_to_a_full_queue_removes_nothing(rabbitmq: Server) -> None:
    with closing(rabbitmq.open()) as broker, Connection(rabbitmq.url) as connection:
        full = Queue(f"full-{uuid4()}", queue_arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        queue = Queue(f"browse-{uuid4()}")
        for one in (full, queue):
            one(connection.default_channel).declare()
        for place in range(3):
            publish(connection.default_channel, sample(place), queue.name)
        wait_until(lambda: len(seen(broker, queue.name)) == 3, within_s=30, what="they are there")
        with pytest.raises(Unroutable, match="no more"):
            broker.browse(queue.name, lambda message: Forward(message, full.name))
        assert len(seen(broker, queue.name)) == 2


@pytest.mark.promise
def test_what_decide_raises_ends_the_browse_and_loses_nothing(broker: Broker, declared: Callable[..., str]) -> None:
    queue = declared(4)
    times = iter(range(4))

    def decide(_: Message) -> Decision:
        if next(times) == 2:
            raise KeyboardInterrupt
        return Keep()

    with pytest.raises(KeyboardInterrupt):
        broker.browse(queue, decide)
    wait_until(lambda: len(seen(broker, queue)) == 4, within_s=30, what="all are back")


def test_a_queue_that_is_not_declared_holds_nothing(server: Server, broker: Broker) -> None:
    """RabbitMQ says that it is not there."""
    expected = Browsed(missing=server.name == "RabbitMQ")
    assert expected == broker.browse("never-declared", lambda _: Discard())


def test_a_key_that_is_no_list_is_no_queue_and_takes_no_message(redis: Server) -> None:
    """A script that fails half way is not undone: it must not have removed the message by then."""
    import redis as client

    queue, other = f"browse-{uuid4()}", f"browse-{uuid4()}"
    with closing(redis.open()) as broker, client.Redis.from_url(redis.url) as raw:
        raw.lpush(queue, to_redis(sample(0), queue, "tag"))
        raw.set(other, "a string")
        with pytest.raises(Unroutable, match="no list"):
            broker.browse(queue, lambda message: Forward(message, other))
        assert [one.body for one in seen(broker, queue)] == [b"0"]
        with pytest.raises(FactUnknown, match="no list"):
            broker.browse(other, lambda _: Keep())


def test_what_is_no_message_is_shown_and_can_be_discarded(redis: Server) -> None:
    """A user pushed onto the list by hand, not even text."""
    import redis as client

    name = f"browse-{uuid4()}"
    with closing(redis.open()) as broker, client.Redis.from_url(redis.url) as raw:
        raw.lpush(name, b"\xff\x00", b'{"body": 1}', b"[]")
        assert [one.body for one in seen(broker, name)] == [b"\xff\x00", b'{"body": 1}', b"[]"]
        assert Browsed(discarded=3) == broker.browse(name, lambda _: Discard())
        assert not raw.exists(name)


@pytest.mark.promise
# a thread that an earlier test of this process has left, as one that renews leases, may use it meanwhile
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@given(sent=messages())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_message_comes_through_a_broker_as_it_was(server: Server, broker: Broker, sent: Message) -> None:
    """Published, looked at, forwarded: the same bytes, headers and properties."""
    queue, other = f"through-{server.name}", f"beyond-{server.name}"
    with Connection(server.url, transport_options={"confirm_publish": True}) as connection:
        for name in (queue, other):
            Queue(name)(connection.default_channel).declare()
        publish(connection.default_channel, sent, queue)
    assert Browsed(forwarded=1) == broker.browse(queue, lambda message: Forward(message, other))
    found = seen(broker, other)
    broker.browse(other, lambda _: Discard())
    assert [sent] == found


def test_a_browse_killed_half_way_loses_none(server: Server, broker: Broker, declared: Callable[..., str]) -> None:
    """By SIGKILL, five times, at moments of its own; at most one message a kill is in both queues."""
    number = 200
    queue, other = declared(number), declared()
    for kill_after in (0, 3, 17, 40, 60):
        program = _FORWARD.format(url=server.url, management=server.management_url, queue=queue, other=other)
        process = forked.start([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        with process.stdout:
            for _ in range(kill_after):
                process.stdout.readline()
            process.kill()
        process.wait()
    everywhere: list[int] = []

    def all_are_back() -> bool:
        everywhere[:] = [one.headers["place"] for name in (queue, other) for one in seen(broker, name)]
        return len(everywhere) >= number

    wait_until(all_are_back, within_s=30, what="RabbitMQ has noticed the deaths")
    assert set(range(number)) == set(everywhere)
    assert len(everywhere) <= number + 5
    assert len(seen(broker, other)) >= 100


_FORWARD = """
from repot.brokers import open_broker
from repot.brokers.browse import Forward
from repot.config import BrokerUrl
broker = open_broker(BrokerUrl.parse({url!r}), management_url={management!r})
def decide(message):
    print(message.headers["place"], flush=True)
    return Forward(message, {other!r})
broker.browse({queue!r}, decide)
"""
