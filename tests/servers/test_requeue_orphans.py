"""What no living worker holds is given back; what a living one holds is not."""

from __future__ import annotations

import json
import re
import signal
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from click.testing import CliRunner
from kombu import Connection, Exchange, Queue
from redis import Redis

from repot.brokers import open_broker
from repot.brokers.in_hand import GiveBack, KeepsDeliveries
from repot.cli.main import main
from repot.config import BrokerUrl
from repot.errors import HoldersUnknown
from repot.healthcheck.ping import PingClient, PingOutcome
from repot.migrate import orphans
from repot.migrate.move import open_move
from repot.migrate.orphans import Selection, find_orphans, give_back
from repot.migrate.plan import plan_of
from repot.waiting import wait_until
from repot.worker.status_file import Link
from support.moves import places, task, way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from click.testing import Result
    from kombu import Message

    from repot.testbed import ReapedProcess, Server
    from support.shop import Shop

SHOP = {
    "app": "support.held_app",
    "visibility_timeout": 3600,
    "prefetch_multiplier": 2,
    "dead_letter_queue": "",
    "redis_claim": "brpop",
}
#: Also deliveries of this moment; no worker is there that would answer later.
ALL = Selection(older_than_s=0, within_s=0.2)


@pytest.fixture
def shop(own: Server, redis: Server, opened: Callable[..., Shop]) -> Shop:
    """A shop without a worker."""
    return opened(own, redis)


def hold(shop: Shop, *values: str, task: str = "hold", **options: Any) -> list[str]:
    """Send tasks that end once `let_go` is called; return their ids."""
    return [shop.send(task, value, str(shop.directory / "go"), **options).id for value in values]


def let_go(shop: Shop) -> None:
    (shop.directory / "go").touch()


def started(shop: Shop, value: str, *options: str, count: int = 2) -> ReapedProcess:
    """A worker with one process that runs one task and has the next one in hand; there are `count` in all."""
    worker = shop.start(1, *options)
    hold(shop, value, f"{value}-next")
    shop.await_effects(f"begun {value}")
    await_in_hand(shop, count)
    return worker


def await_in_hand(shop: Shop, count: int) -> None:
    with Redis.from_url(shop.settings.broker_url.reveal()) as client:
        wait_until(lambda: client.hlen("unacked") == count, within_s=60, what=f"{count} are in hand")


def waiting(shop: Shop) -> int:
    with Redis.from_url(shop.settings.broker_url.reveal()) as client:
        return int(client.llen(shop.name))


def listening(server: Server) -> int:
    """The number of workers that receive commands."""
    with Redis.from_url(server.url, decode_responses=True) as client:
        return sum(int(one["psub"]) for one in client.client_list())


def await_both_consume(server: Server) -> None:
    broker: Any
    with closing(open_broker(BrokerUrl.parse(server.url))) as broker:
        wait_until(lambda: len(broker.consuming_clients()) == 2, within_s=60, what="both consume")


def requeue(shop: Shop, *words: str, older_than: str = "0s") -> Result:
    environment = {"WORKER_BROKER_URL": shop.settings.broker_url.reveal()}
    if shop.settings.management_url:
        environment["WORKER_MANAGEMENT_URL"] = shop.settings.management_url.reveal()
    command = ["inflight", "requeue", "--orphans", "--older-than", older_than, *words]
    return CliRunner().invoke(main, command, env=environment)


def kept(result: Result) -> dict[str, str]:
    """What became of each task."""
    assert result.exit_code == 0, result.output
    return {one["id"]: one["what"] for one in json.loads(result.stdout)}


@pytest.mark.promise
def test_what_a_killed_worker_held_is_given_back_and_runs_once(shop: Shop) -> None:
    started(shop, "task").stop()
    assert "2 would be given back, 0 left\nnothing was changed" in requeue(shop).stderr
    await_in_hand(shop, 2)
    assert {"given back"} == set(kept(requeue(shop, "--execute", "--json")).values())
    assert waiting(shop) == 2
    await_in_hand(shop, 0)
    assert kept(requeue(shop, "--execute", "--json")) == {}
    let_go(shop)
    shop.start(1)
    for value in ("task", "task-next"):
        shop.await_effects(value)
    await_in_hand(shop, 0)
    assert [len(shop.effects(value)) for value in ("task", "task-next")] == [1, 1]


LEASE_S = 6
CLAIM: dict[str, Any] = {"redis_claim": "atomic", "redis_claim_lease": LEASE_S}
#: Longer than a busy machine needs between a worker's end and a look.
LONG_S = 60


@pytest.mark.promise
def test_a_claim_is_left_until_its_lease_is_over(own: Server, redis: Server, opened: Callable[..., Shop]) -> None:
    """Given back, it counts the worker's death; and another worker runs it once."""
    shop = opened(own, redis, **CLAIM | {"redis_claim_lease": LONG_S})
    started(shop, "task").stop()
    assert {"left: its worker lives"} == set(kept(requeue(shop, "--execute", "--json")).values())
    await_in_hand(shop, 2)
    with Redis.from_url(shop.settings.broker_url.reveal()) as client:
        for tag in client.zrange("unacked_index", 0, -1):
            client.zincrby("unacked_index", -LONG_S, tag)
    assert "2 would be given back" in requeue(shop).stderr, "the lease is over"
    assert {"given back"} == set(kept(requeue(shop, "--execute", "--json")).values())
    await_in_hand(shop, 0)
    with Redis.from_url(shop.settings.broker_url.reveal()) as client:
        returned = [json.loads(one) for one in client.lrange(shop.name, 0, -1)]
    assert [one["properties"]["repot_deaths"] for one in returned] == [1, 1]
    let_go(shop)
    shop.start(1)
    for value in ("task", "task-next"):
        shop.await_effects(value)
    assert [len(shop.effects(value)) for value in ("task", "task-next")] == [1, 1]


def ends(server: Server) -> dict[Any, float]:
    """When the lease of each claim ends."""
    with Redis.from_url(server.url) as client:
        return dict(client.zrange("unacked_index", 0, -1, withscores=True))


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_claim_of_a_living_worker_stays_although_it_cannot_answer(
    own: Server, redis: Server, opened: Callable[..., Shop], pool: str
) -> None:
    """Renewed again and again, from a thread."""
    shop = opened(own, redis, **CLAIM)
    started(shop, "task", "--pool", pool, count=1 if pool == "solo" else 2)
    found = open_broker(BrokerUrl.parse(own.url))
    with closing(found) as broker:
        assert isinstance(broker, KeepsDeliveries)
        before = {one.tag: one for one in broker.deliveries()}
        assert len(broker.consuming_clients()) == 1
        # each renewal moves the end by a third of the lease
        renewed_twice = {tag: end_s + LEASE_S / 2 for tag, end_s in ends(own).items()}
        wait_until(
            lambda: all(ends(own).get(tag, 0) > end_s for tag, end_s in renewed_twice.items()),
            within_s=60,
            what="both are renewed again",
        )
        # what was read before may be outdated; what counts is whether the worker lives now
        assert {GiveBack.LIVES} == {broker.give_back(one) for one in before.values()}
        assert dict.fromkeys(before, True) == {one.tag: one.lives for one in broker.deliveries()}


def test_idle_workers_that_claim_are_seen_to_consume(own: Server, redis: Server, opened: Callable[..., Shop]) -> None:
    """One waits to be told of a message, and the other for its turn."""
    shop = opened(own, redis, **CLAIM)
    for _ in range(2):
        shop.start(1)
    await_both_consume(own)
    broker: Any
    with closing(open_broker(BrokerUrl.parse(own.url))) as broker:
        consumers = broker.conditions().traffic([shop.name])[shop.name].consumers
    assert len(consumers) == 2


def test_a_young_delivery_is_left(shop: Shop) -> None:
    started(shop, "task").stop()
    result = requeue(shop, "--execute", older_than="10m")
    assert result.exit_code == 0, result.output
    assert "delivered less than 600 s ago" in result.stdout
    assert waiting(shop) == 0


def test_what_a_living_worker_holds_stays_with_it(own: Server, redis: Server, opened: Callable[..., Shop]) -> None:
    """It runs, is reserved, waits until it is due; or waits unseen for its rate limit."""
    shop = opened(own, redis, prefetch_multiplier=4)
    started(shop, "dead").stop()
    shop.start(1)
    later = hold(shop, "later", countdown=3000)
    await_in_hand(shop, 3)
    limited = hold(shop, "first", "second", task="limited")
    shop.await_effects("begun first")
    await_in_hand(shop, 5)
    mine = hold(shop, "mine")
    await_in_hand(shop, 6)
    found = kept(requeue(shop, "--execute", "--json", "--wait", "30s"))
    by = f"left: celery@w1-{shop.name} holds it"
    assert f"{by} (scheduled)" == found.pop(later[0])
    assert f"{by} (reserved)" == found.pop(mine[0])
    unseen = "left: a worker limits the rate of this task, and may hold it unseen"
    assert {unseen} == {found.pop(one) for one in limited}
    assert list(found.values()) == ["given back"] * 2
    # a second round finds what the worker holds by now, and nothing else
    again = kept(requeue(shop, "--json", "--wait", "30s"))
    assert not [one for one in again.values() if "given back" in one]


@pytest.mark.parametrize("instant", ["frozen", "solo", "stopping", "mute"])
def test_nothing_is_given_back_while_a_worker_does_not_answer(
    own: Server, redis: Server, opened: Callable[..., Shop], instant: str
) -> None:
    """It is stopped, runs a task in its main process, is in a warm shutdown, or does not listen at all."""
    shop = opened(own, redis, **({"app": "support.mute_app"} if instant == "mute" else {}))
    solo = instant == "solo"
    worker = started(shop, "task", *(("--pool", "solo") if solo else ()), count=1 if solo else 2)
    # another one, which answers unless it is mute, and takes what is free
    shop.start(1)
    await_both_consume(own)
    if instant != "mute":
        wait_until(lambda: listening(own) == 2, within_s=60, what="both listen")
    await_in_hand(shop, 2)
    if instant == "frozen":
        worker.signal(signal.SIGSTOP)
    if instant == "stopping":
        worker.signal(signal.SIGTERM)
        wait_until(lambda: listening(own) == 1, within_s=60, what="it listens no more, and its task runs")
    # who can answer, does so in time
    wait = "1s" if instant == "mute" else "3s"
    result = requeue(shop, "--execute", "--wait", wait)
    assert result.exit_code == 4, result.output
    answering = 0 if instant == "mute" else 1
    assert f"{answering} of them consume, and 2 clients of the broker do: 127.0.0.1:" in result.stderr
    with Redis.from_url(own.url) as client:
        assert client.hlen("unacked") == 2
    if instant == "frozen":
        # it still listens, whatever an operator says of its other connections
        others = re.findall(r"(127\.0\.0\.1:\d+) ", result.stderr)
        assert len(others) == 2
        result = requeue(shop, "--execute", "--wait", wait, *(f"--not-a-worker={one}" for one in others))
        assert result.exit_code == 4, result.output
        assert "1 of 2 workers that listen answered" in result.stderr
        worker.signal(signal.SIGCONT)


@pytest.fixture
def waits(own: Server) -> Iterator[Callable[..., str]]:
    """Consume as another program does; return the address of its connection."""
    clients: list[Any] = []

    def wait() -> str:
        clients.append(Redis.from_url(own.url, decode_responses=True))
        address = str(clients[-1].client_info()["addr"])
        clients[-1].brpop("another", 0.01)
        return address

    yield wait
    for one in clients:
        one.close()


def test_a_client_that_is_known_to_be_no_worker_can_be_left_out(shop: Shop, waits: Callable[..., str]) -> None:
    started(shop, "task").stop()
    # repot's own probes are known
    link = Link("", "", "celery", {}, server=f"127.0.0.1:{urlsplit(shop.settings.broker_url.reveal()).port}")
    with closing(PingClient(shop.settings, link, 0.5)) as probe:
        assert PingOutcome.TIMEOUT is probe.ping("not-there").outcome
        _requeue_beside(shop, waits())


def _requeue_beside(shop: Shop, other: str) -> None:
    refused = requeue(shop, "--execute")
    assert refused.exit_code == 4, refused.output
    assert f"and 1 clients of the broker do: {other} (connected" in refused.stderr
    assert waiting(shop) == 0
    assert len(kept(requeue(shop, "--execute", "--json", "--not-a-worker", other))) == 2
    assert waiting(shop) == 2


def test_a_broker_that_returns_messages_by_itself_needs_no_help(
    rabbitmq: Server, redis: Server, opened: Callable[..., Shop]
) -> None:
    shop = opened(rabbitmq, redis, management_url=rabbitmq.management_url)
    result = requeue(shop, "--execute")
    assert result.exit_code == 0, result.output
    assert (result.stderr.splitlines()) == [
        "RabbitMQ delivers a message again by itself when its worker's connection ends"
    ]


class Held:
    """Messages that a consumer received and does not acknowledge, with a prefix of keys; no Celery worker has them."""

    def __init__(self, own: Server) -> None:
        self.options = {"global_keyprefix": f"{uuid4()}:"}
        self.connection = Connection(own.url, transport_options=self.options)
        self.client: Any = Redis.from_url(own.url, decode_responses=True)
        self.broker: Any = open_broker(BrokerUrl.parse(own.url), transport_options=self.options)

    def receive(self, queue: Queue, count: int = 1, **options: Any) -> list[Message]:
        """Publish and receive."""
        bound = queue(self.connection.default_channel)
        bound.declare()
        found = []
        for number in range(count):
            headers = {"id": f"{queue.name}-{number}", "task": "shop.charge"}
            self.connection.Producer().publish(
                {}, exchange=queue.exchange, routing_key=queue.routing_key or queue.name, headers=headers, **options
            )
            message = bound.get()
            assert message is not None
            found.append(message)
        return found

    def left(self) -> dict[str, str]:
        """Give back what can be; why the rest is left, by its tag."""
        return {one.delivery.tag: one.reason for one in give_back(self.broker, find_orphans(self.broker, ALL))}

    def elements(self, name: str) -> list[Any]:
        return [json.loads(one) for one in self.client.lrange(self.options["global_keyprefix"] + name, 0, -1)]

    def unacked(self) -> int:
        return int(self.client.hlen(self.options["global_keyprefix"] + "unacked"))

    def close(self) -> None:
        for one in (self.connection, self.client, self.broker):
            one.close()


@pytest.fixture
def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look again at once: none can take or settle a message between two looks."""
    monkeypatch.setattr(orphans, "_LOOKS_APART_S", 0.1)


@pytest.fixture
def held(own: Server, no_worker: None) -> Iterator[Held]:  # noqa: ARG001 - for what it does
    with closing(Held(own)) as found:
        yield found


def test_a_message_goes_where_its_queue_is_read_next(held: Held) -> None:
    """To the list of its priority, marked as redelivered, with what kombu would find there; the prefix is kept."""
    name = f"q-{uuid4()}"
    queue = Queue(name, Exchange(f"x-{name}"), routing_key="some.key")
    (message,) = held.receive(queue, priority=7)
    bound = queue(held.connection.default_channel)
    held.connection.Producer().publish({}, exchange=queue.exchange, routing_key="some.key", priority=7)
    assert {message.delivery_tag: ""} == held.left()
    assert held.unacked() == 0
    younger, older = held.elements(f"{name}\x06\x166")
    assert f"{name}-0" == older["headers"]["id"]
    assert (older["headers"]["redelivered"], older["properties"]["delivery_info"]["redelivered"]) == (True, True)
    assert "redelivered" not in younger["headers"]
    again = bound.get()
    assert again is not None
    assert again.delivery_info["redelivered"]
    assert message.body == again.body


def test_what_has_no_single_queue_is_left(held: Held) -> None:
    exchange = Exchange(f"x-{uuid4()}", type="topic")
    names = sorted(f"q-{uuid4()}" for _ in range(2))
    queues = [Queue(name, exchange, routing_key=key) for name, key in zip(names, ("a.*", "*.b"), strict=True)]
    for one in queues:
        one(held.connection.default_channel).declare()
    held.connection.Producer().publish({}, exchange=exchange, routing_key="a.b", headers={"id": "i"})
    message = queues[0](held.connection.default_channel).get()
    assert message is not None
    assert {message.delivery_tag: f"it may belong to several queues: {', '.join(names)}"} == held.left()
    held.client.delete(f"{held.options['global_keyprefix']}_kombu.binding.{exchange.name}")
    assert {message.delivery_tag: "no queue is bound to its key"} == held.left()
    assert held.unacked() == 1


def test_what_is_not_a_delivery_of_kombu_is_left(held: Held) -> None:
    prefix = held.options["global_keyprefix"]
    values = {
        "text": "no JSON",
        "no-id": json.dumps([{"body": "", "headers": {}, "properties": {}}, "", "q"]),
        "no-info": json.dumps([{"body": "", "headers": {"id": "i"}, "properties": {}}, "", "q"]),
        "no-index": json.dumps([{"body": "", "headers": {"id": "i"}, "properties": {}}, "", "q"]),
        "no-list": json.dumps([{"headers": {"id": "i"}, "properties": {"delivery_info": {}}}, "", "hash"]),
    }
    held.client.hset(f"{prefix}hash", "a", "b")
    for tag, value in values.items():
        held.client.hset(f"{prefix}unacked", tag, value)
        if tag != "no-index":
            held.client.zadd(f"{prefix}unacked_index", {tag: 1.5})
    unreadable = "its message cannot be read"
    assert {
        "text": unreadable,
        "no-id": "it has no task id",
        "no-info": unreadable,
        "no-index": "the broker does not know when it was delivered",
        "no-list": "the key of its queue holds no list",
    } == held.left()
    assert len(values) == held.unacked()


@pytest.mark.promise
def test_a_delivery_that_has_changed_is_not_given_back(held: Held) -> None:
    """It was acknowledged, or restored and delivered again, after it had been looked at."""
    acked, again, other, same = held.receive(Queue(f"q-{uuid4()}"), 4)
    prefix = held.options["global_keyprefix"]
    found = find_orphans(held.broker, ALL)
    acked.ack()
    held.client.zincrby(f"{prefix}unacked_index", 0.001, again.delivery_tag)
    held.client.hset(f"{prefix}unacked", other.delivery_tag, json.dumps([{}, "", "q"]))
    left = {one.delivery.tag: one.reason for one in give_back(held.broker, found)}
    reasons = [left[str(one.delivery_tag)] for one in (same, acked, again, other)]
    assert ["", GiveBack.GONE.value, GiveBack.GONE.value, GiveBack.UNREADABLE.value] == reasons
    assert held.unacked() == 2


@pytest.mark.promise
def test_an_acknowledgement_at_the_same_moment_wins_or_loses_as_a_whole(held: Held, own: Server) -> None:
    """The message is gone, or back in its queue; never both, and never neither."""
    name = f"q-{uuid4()}"
    held.receive(Queue(name), 200)
    prefix = held.options["global_keyprefix"]
    found = find_orphans(held.broker, ALL)
    acked: set[str] = set()
    both = threading.Barrier(2, timeout=60)

    def acknowledge() -> None:
        """As kombu does, at one of three moments of giving back."""
        with Redis.from_url(own.url) as client:
            for number, one in enumerate(found):
                both.wait()
                for _ in range(number % 3):
                    client.ping()
                with client.pipeline() as pipeline:
                    pipeline.zrem(f"{prefix}unacked_index", one.delivery.tag)
                    pipeline.hdel(f"{prefix}unacked", one.delivery.tag)
                    if all(pipeline.execute()):
                        acked.add(one.delivery.tag)

    worker = threading.Thread(target=acknowledge)
    worker.start()
    returned = set()
    for one in found:
        both.wait()
        returned |= {done.delivery.tag for done in give_back(held.broker, [one]) if done.is_orphan}
    worker.join()
    assert held.unacked() == held.client.zcard(f"{prefix}unacked_index") == 0
    assert set() == acked & returned
    assert len(acked | returned) == 200
    assert returned == {one["properties"]["delivery_tag"] for one in held.elements(name)}
    assert acked
    assert returned


@pytest.mark.usefixtures("no_worker")
def test_a_move_takes_orphans_with_it(own: Server, redis: Server) -> None:
    """It says what it must leave; and it refuses while a worker may hold them."""
    path = way(own, redis, redis)
    with Connection(own.url) as connection:
        queue = Queue(path.queue)(connection.default_channel)
        path.fill([task(0), task(1)])
        for _ in range(2):
            assert queue.get() is not None
        # one that the broker cannot assign to a time
        with Redis.from_url(own.url) as client:
            client.zrem("unacked_index", *client.zrange("unacked_index", 0, 0))
        path.fill([task(2)])
        order = replace(path.order(), orphans=Selection((path.queue,), older_than_s=0))
        with open_move(order, path.settings) as move:
            problems = plan_of(move, 0, follows=False)
            assert "1 orphans would be given back; 1 left: the broker does not know when it was delivered" in (
                problems.notes
            )
            assert len(path.left()) == 1
            found = move.run(Event())
            assert found.delivered == 2
            text = "1 orphans given back; 1 left: the broker does not know when it was delivered"
            assert text == path.status(move)["in_hand"]
    assert sorted(places(path.arrived()), reverse=True) == [2, 1]


def test_a_move_does_not_begin_while_a_worker_may_hold_orphans(
    own: Server, redis: Server, waits: Callable[..., str]
) -> None:
    path = way(own, redis, redis)
    with Connection(own.url) as connection:
        path.fill([task(0)])
        assert Queue(path.queue)(connection.default_channel).get() is not None
        waits()
        path.fill([task(1)])
        order = replace(path.order(), orphans=Selection((path.queue,), older_than_s=0))
        with open_move(order, path.settings) as move:
            assert [one for one in plan_of(move, 0, follows=False).all_problems if "nothing is given back" in one]
            with pytest.raises(HoldersUnknown):
                move.run(Event())
        assert places(path.left()) == [1]
        assert path.arrived() == []


@pytest.mark.usefixtures("no_worker")
def test_a_plan_says_what_a_move_would_give_back(own: Server, redis: Server) -> None:
    path = way(own, redis, redis)
    words = ["move", "start", "--name", path.name, "--from", own.url, "--to", redis.url, "--queue", path.queue]
    with Connection(own.url) as connection:
        path.fill([task(0)])
        assert Queue(path.queue)(connection.default_channel).get() is not None
        result = CliRunner().invoke(main, [*words, "--orphans"])
        assert result.exit_code == 0, result.output
        assert "0 orphans would be given back; 1 left: it was delivered less than 60 s ago" in result.stdout
        assert "orphans" not in CliRunner().invoke(main, words).stdout


@pytest.mark.usefixtures("no_worker")
def test_the_rights_of_the_page_are_enough(own: Server) -> None:
    page = (Path(__file__).parents[2] / "docs" / "rights.md").read_text()
    (line,) = re.findall(r"^ACL SETUSER inflight (.*)$", page, re.MULTILINE)
    with (
        Connection(own.url) as connection,
        Redis.from_url(own.url) as client,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("WORKER_BROKER_URL", f"redis://inflight:secret@127.0.0.1:{own.port}/0")
        client.execute_command("ACL", "SETUSER", "inflight", "reset", *line.replace("PASSWORD", "secret").split())
        connection.Producer().publish({}, routing_key="orders", headers={"id": "i", "task": "t"})
        assert Queue("orders")(connection.default_channel).get() is not None
        listed = CliRunner().invoke(main, ["inflight", "list", "--json"])
        assert listed.exit_code == 0, listed.output
        assert [one["id"] for one in json.loads(listed.stdout)["tasks"]] == ["i"]
        words = ["inflight", "requeue", "--orphans", "--older-than", "0s", "--execute", "--json"]
        assert kept(CliRunner().invoke(main, words)) == {"i": "given back"}
        assert client.llen("orders") == 1
