"""What a rollout moves: every queue, one journal for each direction, and no end while a move is at work."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest

from repot.config import BrokerUrl, ExplicitSettings
from repot.errors import BrokerUnreachable
from repot.migrate.addresses import Address
from repot.rollout import carrying as carrying_module
from repot.rollout.carrying import Carrying
from repot.routing.side import Side
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.migrate.move import Order

QUEUES = ("orders", "mails")
ADDRESSES = {
    Side.SOURCE: Address(BrokerUrl.parse("redis://127.0.0.1:6379/0")),
    Side.TARGET: Address(BrokerUrl.parse("amqp://guest:guest@127.0.0.1:5672//")),
}


def carrying(rollout: str = "friday", queues: tuple[str, ...] = QUEUES) -> Carrying:
    return Carrying(rollout, ExplicitSettings(), ADDRESSES, queues)


@pytest.mark.parametrize("side", list(Side))
def test_a_move_has_all_queues_under_their_names_and_goes_to_the_other_side(side: Side) -> None:
    order = carrying().order(side)
    assert {"orders": "orders", "mails": "mails"} == dict(order.queues) == dict(order.rules.queues)
    assert (ADDRESSES[side], ADDRESSES[side.other]) == (order.addresses.source, order.addresses.target)


@pytest.mark.parametrize("rollout", ["friday", "a.b", "x" * 64])
def test_each_direction_has_a_journal_of_its_own(rollout: str) -> None:
    """Else what one has moved counts as known to the other: a message that comes back would be taken out as moved."""
    names = {carrying(rollout).order(side).name for side in Side}
    assert len(names) == 2


def test_other_moves_are_looked_for_in_both_directions() -> None:
    ways = [(one.addresses.source, one.addresses.target) for one in carrying().others(["byhand"])]
    source, target = ADDRESSES[Side.SOURCE], ADDRESSES[Side.TARGET]
    assert [(source, target), (target, source)] == ways


class Move:
    """A move that a test holds up, and that says what it has moved."""

    def __init__(self) -> None:
        self.may_end = Event()
        self.orders: list[Order] = []
        self.counts = (3, 5)
        self.error: BrokerUnreachable | None = None
        self.stops: list[Event] = []
        self.settled: list[str] = []

    @contextmanager
    def opened(self, order: Order, _settings: Any) -> Iterator[Move]:
        self.orders.append(order)
        yield self

    def settle(self, _stop: Event) -> None:
        self.settled.append(self.orders[-1].name)

    def run(self, stop: Event, progress: Callable[[str, str, int], None]) -> None:
        self.stops.append(stop)
        for count in self.counts:
            progress("orders", "moving", count)
        assert self.may_end.wait(60)
        if self.error:
            raise self.error


@pytest.fixture
def move(monkeypatch: pytest.MonkeyPatch) -> Iterator[Move]:
    found = Move()
    monkeypatch.setattr(carrying_module, "open_move", found.opened)
    yield found
    found.may_end.set()


def _ended(found: Carrying, move: Move) -> None:
    move.may_end.set()
    assert found._thread is not None
    found._thread.join(60)


def test_one_move_is_at_work_at_a_time_and_the_next_one_goes_on_counting(move: Move) -> None:
    found = carrying()
    found.go_on(Side.TARGET)
    found.go_on(Side.TARGET)
    assert found.is_at_work
    _ended(found, move)
    assert (len(move.stops), found.is_at_work, found.moved) == (1, False, {"orders": 5})
    found.go_on(Side.TARGET)
    _ended(found, move)
    assert found.moved == {"orders": 10}
    assert found.said() == "10 moved to the other side"


def test_a_move_that_ends_early_says_why_and_another_one_may_begin(move: Move) -> None:
    found = carrying()
    move.error = BrokerUnreachable("the target is gone", hint="")
    found.go_on(Side.SOURCE)
    _ended(found, move)
    assert found.said() == "5 moved to the other side; the target is gone"
    move.error = None
    found.go_on(Side.SOURCE)
    _ended(found, move)
    assert found.said() == "10 moved to the other side"


def test_a_rollout_that_turns_ends_the_move_and_settles_what_that_left(move: Move) -> None:
    """A move whose target refuses all has no end of its own, and one that ended early has messages in its journal."""
    found = carrying()
    found.go_on(Side.SOURCE)
    found.go_on(Side.SOURCE)
    wait_until(lambda: move.stops, within_s=60, what="it is at work")
    assert not move.stops[0].is_set()
    found.go_on(Side.TARGET)
    assert move.stops[0].is_set()
    move.error = BrokerUnreachable("it was interrupted", hint="")
    _ended(found, move)
    assert move.settled == []
    assert found.may_hold(Side.SOURCE)
    move.error = None
    found.go_on(Side.TARGET)
    _ended(found, move)
    assert move.settled == [found.order(Side.SOURCE).name]
    assert not any(map(found.may_hold, Side))
    found.go_on(Side.TARGET)
    _ended(found, move)
    assert len(move.settled) == 1


def test_bodies_of_any_content_type_are_moved() -> None:
    """The workers of both sides are those of one application: what one of them loads, the other does."""
    assert carrying().order(Side.SOURCE).rules.raw


def test_closing_waits_for_the_window_in_progress(move: Move) -> None:
    found = carrying()
    found.go_on(Side.SOURCE)
    closes = Thread(target=found.close)
    closes.start()
    assert found._stop.wait(60)
    assert closes.is_alive()
    _ended(found, move)
    closes.join(60)
    assert not closes.is_alive()
