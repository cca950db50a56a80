"""Brokers are started once, lent to as many cases as may have them, and a failure is that of its case alone."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, Event, Lock
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from repot.chaos.case import Case
from repot.chaos.grounds import Grounds, Kind, Loan
from repot.chaos.profiles import PROFILES
from repot.chaos.scenarios import SCENARIOS, Needs
from repot.errors import Interrupted, RepotError, ServerFailed
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WITHIN_S = 10


class Factory:
    """Makes things to lend: how many, which ended, and what goes wrong."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.ended: list[Any] = []
        self.starts = 0
        self.failing_starts: list[Exception] = []
        self.failing_ends: list[Exception] = []
        self.mend: Callable[[], None] = lambda: None
        #: A start waits for it.
        self.gate = Event()
        self.gate.set()
        self._lock = Lock()

    @contextmanager
    def __call__(self) -> Iterator[Any]:
        with self._lock:
            self.starts += 1
        assert self.gate.wait(WITHIN_S)
        if self.failing_starts:
            raise self.failing_starts.pop(0)
        one = SimpleNamespace(product="Broker", mend=self.mend)
        self.made.append(one)
        yield one
        self.ended.append(one)
        if self.failing_ends:
            raise self.failing_ends.pop(0)


@pytest.fixture
def factory() -> Factory:
    return Factory()


@pytest.fixture
def stop() -> Event:
    return Event()


def cases(count: int, needs: Needs = Needs.ANY, broker: str = "amqp") -> list[Case]:
    scenario = next(one for one in SCENARIOS.values() if one.needs is needs)
    profile = next(one for one in PROFILES.values() if one.broker == broker)
    return [Case(scenario, profile, guard=False, number=number) for number in range(1, count + 1)]


def grounds(factory: Factory, stop: Event | None = None, **kind: Any) -> Grounds:
    kinds = {("amqp", needs): Kind(factory, **kind) for needs in Needs}
    return Grounds(lambda _: None, {}, stop, kinds)


@contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(count) as pool:
        yield pool


def outcome(future: Future[Any]) -> Any:
    """What came of it; never waits for ever."""
    error = future.exception(timeout=WITHIN_S)
    return error or future.result()


def test_a_shared_broker_is_started_once(factory: Factory) -> None:
    lender, pending, together = grounds(factory, guests=8), cases(8), Barrier(8)

    def one_case() -> Any:
        together.wait(WITHIN_S)
        return lender.start(lender.lend(pending))

    with threads(8) as pool:
        found = [outcome(one) for one in [pool.submit(one_case) for _ in range(8)]]
    assert found == factory.made * 8
    assert pending == []
    assert factory.ended == []
    lender.close()
    assert factory.ended == factory.made


def test_who_is_to_start_a_broker_is_decided_when_it_is_lent(factory: Factory) -> None:
    """Both have it before either starts it: one does, and the other does not wait for itself."""
    lender, pending = grounds(factory, guests=2), cases(2)
    loans = [lender.lend(pending), lender.lend(pending)]
    assert [True, False] == [loan.starts for loan in loans]
    with threads(2) as pool:
        second = pool.submit(lender.start, loans[1])
        first = pool.submit(lender.start, loans[0])
        assert outcome(first) is outcome(second) is factory.made[0]


def test_who_was_to_start_it_and_does_not_keeps_nobody_waiting(factory: Factory) -> None:
    lender, pending = grounds(factory, guests=2), cases(2)
    first, second = lender.lend(pending), lender.lend(pending)
    with threads(1) as pool:
        found = pool.submit(lender.start, second)
        lender.give_back(first)
        assert outcome(found) is factory.made[0]
    assert second.starts


def test_a_start_that_fails_is_that_of_its_case_alone(factory: Factory) -> None:
    """Those who wait for it try once more."""
    lender, pending = grounds(factory, guests=4), cases(4)
    factory.failing_starts = [ServerFailed("it did not come up")]
    factory.gate.clear()
    loans = [lender.lend(pending) for _ in range(4)]
    with threads(4) as pool:
        found = [pool.submit(_started_and_given_back, lender, loan) for loan in loans]
        wait_until(lambda: factory.starts == 1, within_s=WITHIN_S, what="one starts it")
        factory.gate.set()
        results = [outcome(one) for one in found]
    assert isinstance(results[0], ServerFailed)
    assert results[1:] == factory.made * 3
    assert factory.starts == 2


def _started_and_given_back(lender: Grounds, loan: Loan) -> Any:
    try:
        ground = lender.start(loan)
    except RepotError:
        lender.give_back(loan, broken=True)
        raise
    lender.give_back(loan)
    return ground


def test_what_never_starts_is_not_tried_for_ever(factory: Factory) -> None:
    lender, pending = grounds(factory), cases(6)
    factory.failing_starts = [ServerFailed("no memory") for _ in range(6)]
    for _ in range(5):
        with pytest.raises(ServerFailed, match="no memory"):
            lender.take(pending)
    assert factory.starts == 3


def test_what_fails_after_the_start_ends_what_was_started(factory: Factory) -> None:
    def serves(_: object) -> None:
        raise ZeroDivisionError

    lender = Grounds(serves, {}, None, {("amqp", Needs.ANY): Kind(factory)})
    with pytest.raises(ZeroDivisionError):
        lender.take(cases(1))
    assert factory.ended == factory.made


@pytest.mark.parametrize("waits_for", ["a free one", "its start"])
def test_a_stop_ends_waiting(factory: Factory, stop: Event, waits_for: str) -> None:
    lender, pending = grounds(factory, stop, guests=2 if waits_for == "its start" else 1), cases(2)
    first = lender.lend(pending)
    with threads(2) as pool:
        factory.gate.clear()
        starting = pool.submit(lender.start, first)
        waiting = pool.submit(lambda: lender.start(lender.lend(pending)))
        wait_until(lambda: factory.starts == 1, within_s=WITHIN_S, what="one starts it")
        stop.set()
        assert isinstance(outcome(waiting), Interrupted)
        factory.gate.set()
        assert outcome(starting) is factory.made[0]
    lender.close()
    assert factory.ended == factory.made


def test_after_a_stop_nothing_is_lent_or_started(factory: Factory, stop: Event) -> None:
    lender, pending = grounds(factory, stop), cases(2)
    loan = lender.lend(pending)
    stop.set()
    with pytest.raises(Interrupted):
        lender.start(loan)
    with pytest.raises(Interrupted):
        lender.lend(pending)
    assert (0, 1) == (factory.starts, len(pending))


def test_a_broken_broker_is_not_lent_again_and_ends_with_its_last_guest(factory: Factory) -> None:
    lender, pending = grounds(factory, guests=2), cases(3)
    first, second = lender.lend(pending), lender.lend(pending)
    assert lender.start(first) is lender.start(second)
    lender.give_back(first, broken=True)
    assert factory.ended == []
    _, another, _ = lender.take(pending)
    assert [another] == factory.made[1:]
    lender.give_back(second)
    assert factory.ended == factory.made[:1]
    lender.close()
    assert factory.ended == factory.made


@pytest.mark.parametrize("error", [ServerFailed("gone"), ZeroDivisionError()])
def test_one_that_cannot_be_mended_makes_room_for_another(factory: Factory, error: Exception) -> None:
    def mend() -> None:
        raise error

    factory.mend = mend
    lender, pending = grounds(factory), cases(2, Needs.OWN)
    loan = lender.lend(pending)
    lender.start(loan)
    if isinstance(error, RepotError):
        lender.give_back(loan)
    else:
        with pytest.raises(ZeroDivisionError):
            lender.give_back(loan)
    assert factory.ended == factory.made
    lender.take(pending)
    assert len(factory.made) == 2


def test_a_mended_one_is_used_again(factory: Factory) -> None:
    lender, pending = grounds(factory), cases(2, Needs.OWN)
    _, first, give_back = lender.take(pending)
    give_back()
    _, second, _ = lender.take(pending)
    assert first is second


def test_all_are_ended_even_if_one_fails(factory: Factory) -> None:
    lender, pending = grounds(factory, most=3), cases(3)
    for _ in range(3):
        lender.take(pending)
    factory.failing_ends = [ServerFailed("it does not end")]
    with pytest.raises(ServerFailed, match="does not end"):
        lender.close()
    assert len(factory.ended) == 3


@pytest.mark.parametrize("broken", [True, False])
def test_somebodys_own_broker_is_lent_to_one_at_a_time(factory: Factory, stop: Event, broken: bool) -> None:
    """Never mended or ended, and lent again whatever became of the case."""
    own: Any = SimpleNamespace()
    lender = Grounds(lambda _: None, {"amqp": own}, stop, {("amqp", Needs.ANY): Kind(factory, guests=8)})
    pending = cases(2)
    first = lender.lend(pending)
    assert lender.start(first) is own
    with threads(1) as pool:
        waiting = pool.submit(lambda: lender.start(lender.lend(pending)))
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.5)
        lender.give_back(first, broken=broken)
        assert outcome(waiting) is own
    assert factory.starts == 0
