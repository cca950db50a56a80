"""Which task queues a broker says it has: one suite, both brokers; and what only Redis' keys show."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import Celery
from kombu import Connection, Exchange, Queue, pools
from redis import Redis

from repot.brokers import Depth, open_broker
from repot.brokers.held import Held, HoldsQueues
from repot.config import BrokerUrl
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.brokers import Broker
    from repot.testbed import Server


@pytest.fixture(params=["own", "rabbitmq"])
def each(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


def application(server: Server, **options: Any) -> Celery:
    found = Celery("held", broker=server.url, set_as_current=False)
    found.conf.broker_transport_options = options
    found.conf.task_create_missing_queue_type = "quorum"
    return found


def send(server: Server, queue: str, count: int = 1, **options: Any) -> None:
    # kombu remembers what it has declared on a pooled connection, and tests remove it
    pools.reset()
    app = application(server, **options)
    for number in range(count):
        app.send_task("shop.charge", [number], queue=queue, priority=number % 10)


def held(server: Server, **options: Any) -> Held:
    broker: Any = open_broker(
        BrokerUrl.parse(server.url), management_url=server.management_url, transport_options=options
    )
    with closing(broker):
        assert isinstance(broker, HoldsQueues)
        return broker.held()


def counted(server: Server, queue: str, depth: Depth) -> None:
    wait_until(lambda: depth == held(server).queues.get(queue), within_s=30, what=f"{queue} holds {depth}")


def test_what_a_mover_has_staged_is_in_hand_of_its_queue(rabbitmq: Server) -> None:
    """And is not a queue of its own, which no setting would name."""
    queue = f"staged-{uuid4()}"
    send(rabbitmq, queue, 2)
    counted(rabbitmq, queue, Depth(2, 0))
    send(rabbitmq, f"{queue}.repot-staging", 3)
    counted(rabbitmq, queue, Depth(2, 3))
    assert f"{queue}.repot-staging" not in held(rabbitmq).queues


@pytest.fixture
def broker(each: Server) -> Iterator[Broker]:
    with closing(each.open()) as found:
        yield found


def test_a_queue_that_no_setting_names_is_found_with_its_counts(each: Server) -> None:
    name = f"slow-{uuid4()}"
    send(each, name, 3)
    # also what was sent a moment ago: counts that the management API makes from time to time are not waited for
    found = held(each).queues[name]
    assert isinstance(found, Depth)
    assert found.ready == 3
    with Connection(each.url) as connection:
        assert Queue(name, no_declare=True)(connection.channel()).get() is not None
        counted(each, name, Depth(2, 1))
    empty = f"empty-{uuid4()}"
    with Connection(each.url) as connection:
        Queue(empty, Exchange(empty), routing_key=empty, queue_arguments={"x-queue-type": "quorum"})(
            connection.channel()
        ).declare()
    counted(each, empty, Depth(0, 0))


@pytest.mark.parametrize("name", ["Bücher", "a:b:3", "with space", "a\x06b", "x" * 200, "-'\"{}*[?]"])
def test_any_name_is_found_as_it_is(each: Server, name: str) -> None:
    name = f"{name}-{uuid4()}"
    send(each, name, 10)
    assert getattr(held(each).queues[name], "ready", None) == 10


def test_mailboxes_events_and_results_are_no_task_queues(each: Server) -> None:
    names = [f"{one}{uuid4()}" for one in ("w@", "celeryev.", "bcast.")]
    with Connection(each.url) as connection:
        channel = connection.channel()
        Queue(f"{names[0]}.celery.pidbox", Exchange("celery.pidbox", "fanout"), durable=False)(channel).declare()
        Queue(names[1], Exchange("celeryev", "topic"), routing_key="#", durable=False, auto_delete=True)(
            channel
        ).declare()
        Queue(names[2], Exchange("news", "fanout"), durable=False, auto_delete=True)(channel).declare()
        # a client's results
        results = Queue(str(uuid4()), Exchange(""), durable=False, auto_delete=True, expires=60)(channel)
        results.declare()
        connection.Producer().publish({"task_id": "x", "status": "SUCCESS"}, routing_key=results.name)
        found = held(each).queues
    assert not [one for one in found if one in (f"{names[0]}.celery.pidbox", *names[1:], results.name)]


def test_what_workers_hold_names_its_queue_also_without_a_list_and_a_binding(own: Server) -> None:
    send(own, "slow", 2)
    with Connection(own.url) as connection:
        channel = connection.channel()
        queue = Queue("slow", no_declare=True)(channel)
        taken = [queue.get(), queue.get()]
        assert all(taken)
        with Redis.from_url(own.url) as client:
            client.delete("_kombu.binding.slow")
        assert {"slow": Depth(0, 2)} == held(own).queues


def test_a_movers_reservation_counts_for_its_queue(own: Server) -> None:
    send(own, "slow", 30)
    with closing(own.open()) as broker:
        held_by: Any = broker
        with closing(held_by.reader("slow", window=30, lease_s=60)) as reader:
            assert len(reader.take(30, "mover").messages) == 30
            assert {"slow": Depth(0, 30)} == held(own).queues


def test_lists_of_other_programs_are_no_queues(own: Server) -> None:
    with Redis.from_url(own.url) as client:
        client.rpush("resque:queue:mail", json.dumps({"class": "Mail", "args": []}))
        client.rpush("numbers", *range(20))
        client.rpush("objects", json.dumps({"body": 1, "properties": 3, "headers": []}))
        client.rpush("slow:5", "theirs")
        client.hset("their_unacked", "a", "b")
        client.sadd("x_kombu.binding.y", "not a binding")
        client.set("text", "x")
        client.zadd("sorted", {"a": 1})
    send(own, "slow")
    found = held(own)
    assert {"slow": Depth(1, 0)} == found.queues
    assert found.beside == ()
    assert found.unknown == ()


@pytest.mark.parametrize("bound", [True, False], ids=["bound", "unbound"])
@pytest.mark.parametrize(
    ("options", "text", "count"),
    [
        ({"global_keyprefix": "shop:"}, "30 messages wait under the prefix 'shop:'", 30),
        ({"global_keyprefix": "shop:", "sep": ":"}, "30 messages wait under the prefix 'shop:'", 30),
        (
            {"priority_steps": list(range(10))},
            "18 messages wait in lists of the steps of priority 1, 2, 4, 5, 7, 8",
            30,
        ),
        ({"sep": ":"}, "21 messages wait in lists with the separator ':'", 30),
        ({"sep": "\x06\x16\x06"}, "21 messages wait in lists with the separator", 30),
    ],
    ids=["prefix", "prefix and separator", "steps", "separator", "longer separator"],
)
def test_what_other_options_reach_is_named_with_them(
    own: Server, options: dict[str, Any], text: str, count: int, *, bound: bool
) -> None:
    send(own, "jobs", 30, **options)
    if not bound:
        with Redis.from_url(own.url) as client:
            client.delete("_", *client.keys("*_kombu.binding*"))
    (beside,) = held(own).beside
    assert text in beside.text
    assert {"jobs"} == beside.queues
    # the options that are named reach all of it
    with_them = held(own, **beside.options)
    assert {"jobs": Depth(count, 0)} == with_them.queues
    assert with_them.beside == ()


def test_what_workers_hold_under_another_prefix_is_named(own: Server) -> None:
    send(own, "jobs", 2, global_keyprefix="shop:")
    with Connection(own.url, transport_options={"global_keyprefix": "shop:"}) as connection:
        assert Queue("jobs", no_declare=True)(connection.channel()).get() is not None
        (beside,) = held(own).beside
    assert beside.text == "1 messages wait and 1 are in the hands of workers under the prefix 'shop:'"


def test_what_lies_without_a_prefix_is_named(own: Server) -> None:
    send(own, "jobs", 2)
    (beside,) = held(own, global_keyprefix="shop:").beside
    assert beside.text == "2 messages wait without a prefix"
    assert beside.options == {"global_keyprefix": ""}


def test_a_message_of_protocol_1_shows_a_queue(own: Server) -> None:
    app = application(own)
    app.conf.task_protocol = 1
    app.send_task("shop.charge", [1], queue="old", serializer="pickle")
    with Redis.from_url(own.url) as client:
        client.delete("_kombu.binding.old")
    assert {"old": Depth(1, 0)} == held(own).queues


@pytest.mark.parametrize(
    ("lacks", "text"),
    [("-scan", "SCAN is refused"), ("-smembers", "not every key"), ("resetkeys ~unacked* ~jobs*", "not every key")],
)
def test_a_right_that_is_missing_makes_queues_unknown_not_absent(own: Server, lacks: str, text: str) -> None:
    send(own, "slow")
    rights = "~* &* +@all"
    with Redis.from_url(own.url) as client:
        client.execute_command("ACL SETUSER", "looker", "on", ">secret", *rights.split(), *lacks.split())  # type: ignore[no-untyped-call]
    url = BrokerUrl.parse(own.url.replace("redis://", "redis://looker:secret@"))
    with closing(open_broker(url)) as broker:
        assert isinstance(broker, HoldsQueues)
        found = broker.held()
    assert [one for one in found.unknown if text in one.reason and "ACL SETUSER looker" in one.remedy], found


def test_a_large_database_is_unknown_not_empty(own: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repot.brokers.redis.held.SEARCHED_KEYS", 1000)
    with Redis.from_url(own.url) as client:
        client.mset({f"key-{number}": "" for number in range(5000)})
    (unknown,) = held(own).unknown
    assert "the database has more than 1000 keys" in unknown.reason


def test_a_hostile_element_hides_no_queue(own: Server) -> None:
    """The other end of the list is looked at, and a binding names it in any case."""
    send(own, "jobs", 1)
    with Redis.from_url(own.url) as client:
        client.rpush("jobs", "garbage")
        assert {"jobs": Depth(2, 0)} == held(own).queues
        client.delete("_kombu.binding.jobs")
        assert {"jobs": Depth(2, 0)} == held(own).queues
