"""The relay of the outbox on a SQLite file: what leaves it, in which order, and when it must not."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from threading import Event
from time import time
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import insert, select, update

from repot.brokers.message import Message, to_redis
from repot.brokers.publishing import CONFIRMED, Receipt, refused, unknown
from repot.config import ExplicitSettings
from repot.database.outbox_tables import outbox, relay
from repot.errors import BrokerUnreachable, LeaseLost
from repot.outbox.publishing import Outcome, publish
from repot.outbox.relay import Relay
from repot.outbox.store import Failure, OutboxStore, State
from support.databases import with_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from support.databases import FileDatabase

BODY = Message(b"[[], {}, {}]", "application/json", "utf-8", {"id": "1", "task": "pay"}, {"expiration": "5"})


@dataclass
class Broker:
    """What takes messages: a test says of which queues, and what it answers to the others."""

    answers: dict[str, Receipt] = field(default_factory=dict)
    taken: list[tuple[str, int]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    failure: Exception | None = None
    before: Callable[[], object] = lambda: None
    asked: int = 0

    def place_of(self, _row: Any) -> str:
        return "here"

    def publish(self, _place: str, queue: str, messages: Sequence[Message]) -> Sequence[Receipt]:
        self.before()
        if self.failure:
            raise self.failure
        self.taken.append((queue, len(messages)))
        # a relay that goes on and on is to fail here, and not at a time limit
        assert len(self.taken) < 50
        self.messages += messages
        return [self.answers.get(queue, CONFIRMED)] * len(messages)

    def check(self) -> None:
        self.asked += 1

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def store(sqlite: FileDatabase) -> Iterator[OutboxStore]:
    settings = ExplicitSettings(lease_store=with_tables(sqlite).url, lease_prefix="shop", lease=60)
    with closing(OutboxStore(settings)) as found:
        yield found


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def outbox_relay(store: OutboxStore, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Relay:
    monkeypatch.setattr("repot.outbox.relay.open_sender", lambda *_: broker)
    url = store.database.engine.url.render_as_string(hide_password=False)
    return Relay(ExplicitSettings(lease_store=url, lease_prefix="shop", lease=60), store)


def add(store: OutboxStore, *queues: str, key: str | None = None, **changes: Any) -> None:
    """Commit a message for each of these queues."""
    for queue in queues:
        values = {
            "prefix": "shop",
            "task_id": "1",
            "root_id": "1",
            "task": "pay",
            "queue": queue,
            "side": "",
            "order_key": key,
            "envelope": to_redis(BODY, queue, ""),
            "created_at": time(),
            "due_at": time(),
            "next_at": 0.0,
            "attempts": 0,
            "state": State.WAITING,
            "error": "",
            **changes,
        }
        store.database.transact(lambda connection, values=values: connection.execute(insert(outbox).values(values)))  # type: ignore[misc]


def left(store: OutboxStore) -> list[tuple[str, str, int]]:
    return [(row.queue, str(row.state), row.attempts) for row in store.rows()]


def try_again(store: OutboxStore) -> None:
    """As if the pause of every message were over."""
    store.database.transact(lambda connection: connection.execute(update(outbox).values(next_at=0)))


def test_what_a_broker_has_confirmed_leaves_the_outbox_and_nothing_else(
    outbox_relay: Relay, store: OutboxStore, broker: Broker
) -> None:
    broker.answers = {
        "full": refused("it is full"),
        "slow": unknown("no answer"),
        "tiny": refused("?", is_too_large=True),
    }
    add(store, "orders", "full", "slow", "tiny")
    outbox_relay.run(Event(), once=True)
    # what will never be taken waits for a person, what may have arrived is sent again under its id
    assert left(store) == [("full", "retrying", 1), ("slow", "retrying", 1), ("tiny", "parked", 1)]
    assert (outbox_relay.state.published, outbox_relay.state.failures) == (1, 3)
    assert store.window() == []


def test_a_message_is_in_the_outbox_until_its_broker_has_it(
    outbox_relay: Relay, store: OutboxStore, broker: Broker
) -> None:
    """A relay that dies while it publishes leaves it for the next one."""
    found: list[Any] = []
    broker.before = lambda: found.append(left(store))
    add(store, "orders")
    outbox_relay.run(Event(), once=True)
    assert found == [[("orders", "waiting", 0)]]
    assert left(store) == []


def test_a_relay_whose_lease_was_taken_while_it_published_deletes_nothing(
    outbox_relay: Relay, store: OutboxStore, broker: Broker
) -> None:
    """The other one has read these rows, and goes by them."""

    def take() -> None:
        store.database.transact(lambda connection: connection.execute(update(relay).values(expires_at=0)))
        assert store.hold("another one").token

    broker.before = take
    add(store, "orders")
    with pytest.raises(LeaseLost):
        outbox_relay.run(Event(), once=True)
    assert left(store) == [("orders", "waiting", 0)]


def test_a_second_relay_publishes_nothing(outbox_relay: Relay, store: OutboxStore, broker: Broker) -> None:
    add(store, "orders")
    held = store.hold("another one")
    with pytest.raises(LeaseLost):
        outbox_relay.run(Event(), once=True)
    assert broker.taken == []
    assert held.token
    store.release(held.token)
    outbox_relay.run(Event(), once=True)
    assert broker.taken == [("orders", 1)]


def test_each_owner_of_the_lease_has_a_larger_token_and_the_last_one_alone_may_settle(store: OutboxStore) -> None:
    first = store.hold("first").token
    assert first
    assert first == store.hold("first").token
    assert ((held := store.hold("second")).token, held.owner) == (None, "first")
    second = store.hold("second", ended="first").token
    assert second
    assert second > first
    assert (store.renew(first), store.renew(second)) == (False, True)
    add(store, "orders")
    (row,) = store.rows()
    with pytest.raises(LeaseLost):
        store.settle(first, [row.id], {})
    store.release(first)
    assert store.hold("third").token is None
    store.settle(second, [row.id], {})
    assert left(store) == []


def test_the_lease_ends_with_its_relay(outbox_relay: Relay, store: OutboxStore) -> None:
    outbox_relay.run(Event(), once=True)
    assert store.hold("the next one").token


def test_what_was_published_while_the_broker_went_away_is_not_published_again(
    outbox_relay: Relay, store: OutboxStore, broker: Broker
) -> None:
    def go_away() -> None:
        if broker.taken:
            broker.failure = BrokerUnreachable("gone", hint="")

    broker.before = go_away
    add(store, "orders", "mails")
    with pytest.raises(BrokerUnreachable):
        outbox_relay.run(Event(), once=True)
    assert broker.taken == [("orders", 1)]
    assert left(store) == [("mails", "waiting", 0)]


def test_messages_of_a_key_leave_in_order_and_wait_for_the_one_before(
    outbox_relay: Relay, store: OutboxStore, broker: Broker
) -> None:
    broker.answers = {"full": refused("it is full")}
    add(store, "orders", "full", "orders", key="customer 7")
    add(store, "mails", key="customer 8")
    outbox_relay.run(Event(), once=True)
    assert broker.taken == [("orders", 1), ("mails", 1), ("full", 1)]
    assert left(store) == [("full", "retrying", 1), ("orders", "waiting", 0)]
    # in the next window as well
    try_again(store)
    outbox_relay.run(Event(), once=True)
    assert left(store) == [("full", "retrying", 2), ("orders", "waiting", 0)]
    broker.answers = {}
    try_again(store)
    outbox_relay.run(Event(), once=True)
    assert broker.taken[-2:] == [("full", 1), ("orders", 1)]
    assert left(store) == []


def test_what_is_not_due_waits(outbox_relay: Relay, store: OutboxStore, broker: Broker) -> None:
    add(store, "later", next_at=time() + 600, due_at=time() + 600)
    outbox_relay.run(Event(), once=True)
    assert (broker.taken, left(store)) == ([], [("later", "waiting", 0)])
    backlog = store.backlog()
    assert (backlog.waiting, backlog.delayed, backlog.parked, backlog.oldest_s) == (0, 1, 0, None)


def test_a_row_that_cannot_be_read_is_parked_and_stops_no_other_one(
    outbox_relay: Relay, store: OutboxStore, broker: Broker
) -> None:
    add(store, "orders", envelope="no message")
    add(store, "orders")
    outbox_relay.run(Event(), once=True)
    assert (broker.taken, left(store)) == ([("orders", 1)], [("orders", "parked", 1)])


def test_the_lifetime_of_a_message_in_the_broker_does_not_begin_in_the_outbox(
    outbox_relay: Relay, store: OutboxStore, broker: Broker
) -> None:
    add(store, "orders")
    outbox_relay.run(Event(), once=True)
    (sent,) = broker.messages
    assert "expiration" not in sent.properties
    assert BODY.headers == sent.headers


def test_a_queue_that_takes_nothing_is_left_alone_after_three_refusals(store: OutboxStore, broker: Broker) -> None:
    broker.answers = {"full": refused("it is full")}
    add(store, "full", "full", "full", "full", "full", attempts=1, state=State.RETRYING)
    outcome = Outcome([], {})
    publish(broker, store.window(), outcome)
    assert broker.taken == [("full", 1)] * 3
    token = store.hold("me").token
    assert token
    store.settle(token, outcome.published, outcome.failed)
    # two were not tried
    assert [attempts for _, _, attempts in left(store)] == [2, 2, 2, 1, 1]


def test_a_relay_that_must_stop_sends_no_further_step(store: OutboxStore, broker: Broker) -> None:
    add(store, "orders", "mails")
    answers = iter((True, False))
    outcome = Outcome([], {})
    publish(broker, store.window(), outcome, lambda: next(answers))
    assert (broker.taken, outcome.failed) == ([("orders", 1)], {})


def test_pauses_grow_with_each_failure_up_to_ten_seconds(store: OutboxStore, broker: Broker) -> None:
    broker.answers = {"full": refused("it is full")}
    pauses = []
    for attempts in (0, 1, 2, 3, 4, 50):
        add(store, "full", attempts=attempts, state=State.RETRYING)
        outcome = Outcome([], {})
        publish(broker, store.window(), outcome)
        pauses += [one.retry_s for one in outcome.failed.values()]
        store.discard([*outcome.failed])
    assert pauses == [1, 2, 4, 8, 10, 10]


def test_an_operator_lets_what_is_parked_go_on(outbox_relay: Relay, store: OutboxStore) -> None:
    add(store, "orders", state=State.PARKED)
    token = store.hold("me").token
    assert token
    (row,) = store.rows(parked=True)
    outbox_relay._store.settle(token, [], {row.id: Failure("never", None)})
    assert store.window() == []
    assert store.retry([row.id]) == 1
    assert [row.id] == [one.id for one, _ in store.window()]
    other = select(outbox.c.prefix)
    assert {"shop"} == store.database.read(lambda connection: {*connection.scalars(other)})
