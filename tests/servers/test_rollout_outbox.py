"""The outbox during a rollout: its relay sends as every other sender does."""

from __future__ import annotations

from contextlib import ExitStack, closing
from threading import Event, Thread
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from repot import outbox
from repot.chaos.runner.proxies import Proxy
from repot.database.migrate import Migrations
from repot.idempotency.guard import guard_of
from repot.outbox.relay import Relay
from repot.outbox.store import OutboxStore
from repot.routing.side import Side, side_of
from repot.testbed import redis_server
from repot.waiting import wait_until
from repot.worker.rollout import rollout_of
from support.moves import declare
from support.rollouts import DIRECTIONS, NAME, TASKS, Rollout, doubled, rollout_between

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from repot.testbed import Server
    from support.databases import PrivateDatabase


class Shop:
    """A rollout whose producer sends by the outbox of a database."""

    def __init__(self, rollout: Rollout, database: PrivateDatabase) -> None:
        self.rollout = rollout
        self.store = OutboxStore(self.rollout.settings)
        Migrations(self.store.database).apply()
        self.engine = create_engine(database.url)
        self.app = self.rollout.producer()

    def send(self, label: str, **options: Any) -> None:
        with Session(self.engine) as session, session.begin():
            outbox.send(session, f"{TASKS}.note", (label,), app=self.app, **options)

    def publish(self) -> None:
        """Run a relay until nothing is left."""
        # the first look at the record waits for half a second at most
        known = self.rollout.records.read(NAME)
        with closing(Relay(self.rollout.settings, self.store)) as relay:
            sender: Any = relay._sender
            wait_until(lambda: sender.record == known, within_s=20, what="the record is read")
            relay.run(Event(), once=True)

    def close(self) -> None:
        self.rollout.stop()
        self.store.close()
        guard_of(self.app).store.close()  # type: ignore[attr-defined]
        self.engine.dispose()


@pytest.fixture(params=DIRECTIONS)
def shop(request: pytest.FixtureRequest, postgresql: PrivateDatabase, tmp_path: Path) -> Iterator[Shop]:
    """A rollout in each direction."""
    with closing(Shop(rollout_between(request, tmp_path, lease_store=postgresql.url), postgresql)) as found:
        yield found


def test_the_relay_follows_the_weights(shop: Shop) -> None:
    shop.rollout.begin(0.5)
    shop.rollout.start_workers()
    labels = [f"n{number}" for number in range(40)]
    for label in labels:
        shop.send(label)
    shop.publish()
    lines = shop.rollout.await_ran(labels)
    assert doubled(lines) == {}
    assert {line["label"]: line["side"] for line in lines} == {
        line["label"]: side_of(NAME, line["root"], 0.5) for line in lines
    }
    assert {line["side"] for line in lines} == set(Side)
    assert not [line for line in lines if line["stamp"] != f"{NAME}:1:{line['side']}"]


def test_what_the_target_does_not_take_goes_to_the_source(
    redis: Server, rabbitmq: Server, postgresql: PrivateDatabase, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        target = stack.enter_context(redis_server())
        rollout = Rollout(rabbitmq.url, target.url, redis, tmp_path, lease_store=postgresql.url)
        shop = stack.enter_context(closing(Shop(rollout, postgresql)))
        shop.rollout.begin(1.0)
        shop.rollout.start_worker(Side.SOURCE)
        target.process.stop()
        shop.send("a")
        shop.publish()
        (line,) = shop.rollout.await_ran(["a"])
        assert line["side"] == Side.SOURCE


def test_what_the_target_has_confirmed_is_not_sent_again_while_the_source_is_away(
    redis: Server, rabbitmq: Server, postgresql: PrivateDatabase, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        source = stack.enter_context(redis_server())
        rollout = Rollout(source.url, rabbitmq.url, redis, tmp_path, lease_store=postgresql.url)
        shop = stack.enter_context(closing(Shop(rollout, postgresql)))
        declare(
            rabbitmq, rollout.queue, **{"x-queue-type": "classic", "x-max-length": 1, "x-overflow": "reject-publish"}
        )
        rollout.begin(1.0)
        source.process.stop()
        for label in "abc":
            shop.send(label)
        shop.publish()
        assert len(rollout.ids(Side.TARGET)) == 1
        assert [row.attempts for row in shop.store.rows()] == [1, 1]


def test_a_relay_that_is_stopped_while_the_target_is_slow_sends_nothing_to_the_source(
    redis: Server, rabbitmq: Server, toxiproxy: Server, postgresql: PrivateDatabase, tmp_path: Path
) -> None:
    """The target may have what was on its way."""
    proxy = Proxy.create(toxiproxy.url, f"slow-{uuid4()}", rabbitmq.port)
    target = rabbitmq.url_at(proxy.port)
    rollout = Rollout(redis.url, target, redis, tmp_path, lease_store=postgresql.url)
    with closing(Shop(rollout, postgresql)) as shop:
        declare(rabbitmq, rollout.queue)
        rollout.begin(1.0)
        stop = Event()
        with closing(Relay(rollout.settings, shop.store)) as relay:
            sender: Any = relay._sender
            wait_until(lambda: sender.record is not None, within_s=20, what="the record is read")
            thread = Thread(target=relay.run, args=(stop,))
            thread.start()
            shop.send("first")
            wait_until(lambda: relay.state.published == 1, within_s=30, what="it is connected")
            with proxy.with_toxic("bandwidth", ["downstream"], {"rate": 0}):
                shop.send("second")
                wait_until(lambda: "takes no messages" in relay.state.trouble, within_s=30, what="it waits")
                stop.set()
                thread.join()
        assert rollout.ids(Side.SOURCE) == []
        assert len(list(shop.store.rows())) == 1


def test_without_a_record_the_relay_sends_to_the_source(shop: Shop) -> None:
    shop.rollout.start_worker(Side.SOURCE)
    shop.send("a")
    shop.publish()
    (line,) = shop.rollout.await_ran(["a"])
    assert line["side"] == Side.SOURCE


def test_what_belongs_to_a_run_stays_on_its_side_until_roots_are_gathered(shop: Shop) -> None:
    shop.rollout.begin(1.0)
    shop.rollout.start_workers()
    sender = rollout_of(shop.app)
    assert sender is not None
    sender.is_worker = True
    shop.send("stays", root_id="a root that runs here")
    shop.publish()
    assert [line["side"] for line in shop.rollout.await_ran(["stays"])] == [Side.SOURCE]
    shop.rollout.change(gather=True)
    shop.send("leaves", root_id="a root that runs here")
    shop.publish()
    assert {line["label"]: line["side"] for line in shop.rollout.await_ran(["stays", "leaves"])} == {
        "stays": Side.SOURCE,
        "leaves": Side.TARGET,
    }
