"""What workers hold: listed on both brokers."""

from __future__ import annotations

import json
import re
import shlex
from contextlib import closing
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from click.testing import CliRunner
from kombu import Connection, Queue
from redis import Redis

from repot.brokers import open_broker
from repot.brokers.in_hand import KeepsDeliveries
from repot.cli.main import main
from repot.config import BrokerUrl
from repot.waiting import wait_until
from support.commands import start

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from repot.testbed import Server
    from support.shop import Shop

SHOP = {"app": "support.held_app", "visibility_timeout": 3600, "prefetch_multiplier": 2, "dead_letter_queue": ""}


@pytest.fixture(params=["own", "rabbitmq"])
def each(request: pytest.FixtureRequest) -> Server:
    """Each broker in turn."""
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def in_hand(each: Server, redis: Server, opened: Callable[..., Shop]) -> Shop:
    """A worker that runs two tasks, one of them acknowledged early, has one more, and waits until another is due."""
    shop = opened(each, redis, management_url=each.management_url or None)
    shop.start(2)
    for task in ("hold", "early"):
        shop.send(task, task, str(shop.directory / "go"))
    for task in ("hold", "early"):
        shop.await_effects(f"begun {task}")
    for _ in range(2):
        shop.send("hold", "reserved", str(shop.directory / "go"))
    return shop


def repot(shop: Shop, *words: str) -> Result:
    """Run `repot inflight` with the shop's broker."""
    environment = {
        "WORKER_BROKER_URL": shop.settings.broker_url.reveal(),
        "WORKER_VISIBILITY_TIMEOUT": str(shop.settings.visibility_timeout),
    }
    if shop.settings.management_url:
        environment["WORKER_MANAGEMENT_URL"] = shop.settings.management_url.reveal()
    return CliRunner().invoke(main, ["inflight", *words], env=environment)


def listed(shop: Shop, *words: str) -> Any:
    result = repot(shop, "list", "--json", *words)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def states(found: Any) -> list[str]:
    return sorted(one["state"] for one in found["tasks"])


@pytest.mark.promise
def test_what_workers_hold_is_listed(in_hand: Shop, each: Server) -> None:
    expected = ["acknowledged", "active", "reserved", "reserved"]

    def all_of_them() -> Any:
        found = listed(in_hand, "--queue", in_hand.name)
        # a busy worker may not answer in time
        return found if found["answered"] and states(found) == expected else None

    found = wait_until(all_of_them, within_s=60, what="all are in hand")
    assert {f"celery@w0-{in_hand.name}"} == {one["worker"] for one in found["tasks"]} == set(found["workers"])
    assert (found["asked"], found["answered"], found["silent"]) == (1, 1, [])
    assert all([in_hand.name] == one["queues"] for one in found["tasks"])
    assert listed(in_hand, "--queue", "another")["tasks"] == []
    wait_until(
        lambda: {"support.held_app.hold", "active"} <= set(repot(in_hand, "list").stdout.split()),
        within_s=60,
        what="the list names task and state",
    )
    if each.management_url:
        # the management API collects every few seconds
        wait_until(lambda: consumer(in_hand)["unacked"] == 3, within_s=60, what="its consumer is listed")
        one = consumer(in_hand)
        assert (one["client"].split()[0], one["host"]) == ("py-amqp", "127.0.0.1")


def consumer(shop: Shop) -> Any:
    """The only consumer of the queue."""
    (found,) = listed(shop, "--queue", shop.name)["consumers"] or [{"unacked": None}]
    return found


def test_the_broker_says_when_it_delivers_again(own: Server, redis: Server, opened: Callable[..., Shop]) -> None:
    shop = opened(own, redis, prefetch_multiplier=1, redis_claim="brpop")
    shop.start(1)
    shop.send("hold", "late", "/nowhere", countdown=3000)
    wait_until(lambda: states(listed(shop)) == ["scheduled"], within_s=60, what="it is in hand")
    (task,) = listed(shop)["tasks"]
    assert task["again_at"] == pytest.approx(task["since"] + 3600)
    assert task["claimed_by"] == ""


def test_a_claim_says_who_holds_it_since_when_and_until_when(
    own: Server, redis: Server, opened: Callable[..., Shop]
) -> None:
    """Also when the worker does not answer; its time moves on with each renewal, and stops when the worker dies."""
    lease_s = 15
    shop = opened(own, redis, prefetch_multiplier=1, redis_claim_lease=lease_s)
    sent_at = time()
    worker = shop.start(1)
    shop.send("hold", "task", str(shop.directory / "go"))
    shop.await_effects("begun task")
    # a busy worker may not answer in time
    (first,) = wait_until(
        lambda: [one for one in listed(shop)["tasks"] if one["state"] == "active"], within_s=60, what="it is active"
    )
    name = f"celery@w0-{shop.name}"
    assert (name, name) == (first["worker"], first["claimed_by"])
    assert sent_at - 1 < first["since"] < time()
    wait_until(lambda: held(shop)["again_at"] > first["again_at"], within_s=60, what="it is renewed")
    assert first["since"] == held(shop)["since"]
    worker.stop()
    one = held(shop)
    assert (name, "claimed") == (one["worker"], one["state"])
    with Redis.from_url(own.url) as client:
        # as if the time of its lease had passed
        client.zincrby("unacked_index", -lease_s, client.hkeys("unacked")[0])
    lapsed = held(shop)
    assert ("lapsed", pytest.approx(one["again_at"] - lease_s, abs=0.001)) == (lapsed["state"], lapsed["again_at"])
    assert lapsed["again_at"] <= time()


def test_the_commands_of_the_page_show_a_claim(own: Server, redis: Server, opened: Callable[..., Shop]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "redis-claims.md").read_text()
    lines = re.findall(r"^redis-cli (.*)$", page, re.MULTILINE)
    shop = opened(own, redis, prefetch_multiplier=1)
    shop.start(1)
    shop.send("hold", "task", str(shop.directory / "go"))
    shop.await_effects("begun task")
    with Redis.from_url(own.url, decode_responses=True) as client:
        (tag,) = client.hkeys("unacked")
        found = [client.execute_command(*shlex.split(line.replace("$TAG", tag))) for line in lines]
    assert re.fullmatch(rf"repot/15/[0-9]{{13}}/[0-9a-f]+-[0-9]+/celery@w0-{shop.name}", tag)
    tags, index, score, value, now, unreadable = found
    assert [tag] == tags
    assert tag in str(index)
    assert float(score) <= now[0] + 1
    assert ["", shop.name] == json.loads(value)[1:]
    assert unreadable == []


def held(shop: Shop) -> Any:
    """The only task in hand."""
    (found,) = listed(shop, "--wait", "0.2s")["tasks"]
    return found


def test_an_application_names_the_broker_the_prefix_and_the_mailbox(own: Server, tmp_path: Path) -> None:
    options = {"global_keyprefix": "shop:"}
    (tmp_path / "stock.py").write_text(
        "from celery import Celery\n"
        f"app = Celery('stock', broker={own.url!r})\n"
        f"app.conf.update(broker_transport_options={options!r}, control_exchange='ours')\n"
    )
    with Connection(own.url, transport_options=options) as connection, Redis.from_url(own.url) as client:
        connection.Producer().publish({}, routing_key="orders", headers={"id": "i", "task": "shop.pay"})
        assert Queue("orders")(connection.default_channel).get() is not None
        listener = client.pubsub()
        listener.psubscribe("shop:/0.ours.pidbox")
        wait_until(listener.get_message, within_s=30, what="it is subscribed")
        started = start(tmp_path, "inflight", "list", "-A", "stock", "--json", "--wait", "1s")
        out, error = started.communicate(timeout=120)
        listener.close()
    assert started.returncode == 0, error
    found = json.loads(out)
    assert [(one["id"], one["task"], one["queues"], one["state"]) for one in found["tasks"]] == [
        ("i", "shop.pay", ["orders"], "unknown")
    ]
    assert (found["asked"], found["answered"]) == (1, 0)


def test_what_is_not_a_delivery_of_kombu_is_listed_as_such(own: Server) -> None:
    with Redis.from_url(own.url) as client, closing(own.open()) as broker:
        values = ["no JSON", "[]", '[{"body": "", "headers": 5}, "", ""]', '{"a": 1}', b"\xff\x00", "[" * 100_000]
        try:
            for number, value in enumerate(values):
                client.hset("unacked", f"tag-{number}", value)
            assert isinstance(broker, KeepsDeliveries)
            found = {one.tag: one for one in broker.deliveries()}
        finally:
            client.delete("unacked")
    assert {f"tag-{number}" for number in range(len(values))} == set(found)
    assert {"its message cannot be read"} == {one.problem for one in found.values()}


def test_a_large_backlog_in_hand_is_read_in_pieces_and_without_bodies(own: Server) -> None:
    """With kombu's prefix of keys, and a binding whose key is not the queue's name."""
    name, prefix = f"large-{uuid4()}", f"{uuid4()}:"
    options = {"global_keyprefix": prefix}
    with (
        Connection(own.url, transport_options=options) as connection,
        closing(open_broker(BrokerUrl.parse(own.url), transport_options=options)) as broker,
        Redis.from_url(own.url) as client,
    ):
        queue = Queue(name, routing_key="some.key")(connection.channel())
        queue.exchange.name = f"x-{name}"
        queue.declare()
        text = '", "content-encoding": ' * 5_000
        for number in range(300):
            connection.Producer().publish(
                {"text": text}, exchange=queue.exchange, routing_key="some.key", headers={"id": f"id-{number}"}
            )
            assert queue.get() is not None
        assert isinstance(broker, KeepsDeliveries)
        before = client.info("stats")["total_net_output_bytes"]
        found = list(broker.deliveries())
        assert client.info("stats")["total_net_output_bytes"] - before < 1_000_000
    assert {f"id-{number}" for number in range(300)} == {one.task_id for one in found}
    assert {(name,)} == {one.queues for one in found}
