"""The pool starts a broker once, limits its users, and a failure concerns only its case."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, Event, Lock
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from repot.chaos.runner.broker_pool import Acquisition, BrokerPool, Provision
from repot.chaos.runner.case import Case
from repot.chaos.scenarios.catalogue import SCENARIOS
from repot.chaos.scenarios.profiles import PROFILES
from repot.chaos.scenarios.scenario import Needs
from repot.config.broker_kinds import BrokerKind
from repot.errors import Interrupted, RepotError, ServerFailed
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WITHIN_S = 10


class Factory:
    """Starts brokers for the pool; counts them and fails on request."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.ended: list[Any] = []
        self.starts = 0
        self.failing_starts: list[Exception] = []
        self.failing_ends: list[Exception] = []
        self.restore: Callable[[], None] = lambda: None
        #: A start waits for it.
        self.may_start = Event()
        self.may_start.set()
        self._lock = Lock()

    @contextmanager
    def __call__(self) -> Iterator[Any]:
        with self._lock:
            self.starts += 1
        assert self.may_start.wait(WITHIN_S)
        if self.failing_starts:
            raise self.failing_starts.pop(0)
        one = SimpleNamespace(product="Broker", restore=self.restore)
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


def cases(count: int, needs: Needs = Needs.ANY, broker: BrokerKind = BrokerKind.RABBITMQ) -> list[Case]:
    scenario = next(one for one in SCENARIOS.values() if one.needs is needs)
    profile = next(one for one in PROFILES.values() if one.kind == broker)
    return [Case(scenario, profile, guard=False, number=number) for number in range(1, count + 1)]


def broker_pool(factory: Factory, stop: Event | None = None, **provision: Any) -> BrokerPool:
    provisions = {(BrokerKind.RABBITMQ, needs): Provision(factory, **provision) for needs in Needs}
    return BrokerPool(lambda _: None, {}, stop, provisions)


@contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(count) as pool:
        yield pool


def outcome(future: Future[Any]) -> Any:
    """Return the result or the error, within a deadline."""
    error = future.exception(timeout=WITHIN_S)
    return error or future.result()


def test_a_shared_broker_is_started_once(factory: Factory) -> None:
    the_pool, pending, together = broker_pool(factory, max_users=8), cases(8), Barrier(8)

    def one_case() -> Any:
        together.wait(WITHIN_S)
        return the_pool.start(the_pool.acquire(pending))

    with threads(8) as pool:
        found = [outcome(one) for one in [pool.submit(one_case) for _ in range(8)]]
    assert found == factory.made * 8
    assert pending == []
    assert factory.ended == []
    the_pool.close()
    assert factory.ended == factory.made


def test_which_case_starts_a_broker_is_decided_when_it_is_acquired(factory: Factory) -> None:
    """Two cases acquire it before either starts it: one starts it, and the other waits for that one."""
    the_pool, pending = broker_pool(factory, max_users=2), cases(2)
    acquisitions = [the_pool.acquire(pending), the_pool.acquire(pending)]
    assert [one.starts for one in acquisitions] == [True, False]
    with threads(2) as pool:
        second = pool.submit(the_pool.start, acquisitions[1])
        first = pool.submit(the_pool.start, acquisitions[0])
        assert outcome(first) is outcome(second) is factory.made[0]


def test_a_case_that_releases_without_a_start_keeps_no_other_waiting(factory: Factory) -> None:
    the_pool, pending = broker_pool(factory, max_users=2), cases(2)
    first, second = the_pool.acquire(pending), the_pool.acquire(pending)
    with threads(1) as pool:
        found = pool.submit(the_pool.start, second)
        the_pool.release(first)
        assert outcome(found) is factory.made[0]
    assert second.starts


def test_a_start_that_fails_concerns_its_case_alone(factory: Factory) -> None:
    """The cases that wait for it try once more."""
    the_pool, pending = broker_pool(factory, max_users=4), cases(4)
    factory.failing_starts = [ServerFailed("it did not come up")]
    factory.may_start.clear()
    acquisitions = [the_pool.acquire(pending) for _ in range(4)]
    with threads(4) as pool:
        found = [pool.submit(_started_and_released, the_pool, one) for one in acquisitions]
        wait_until(lambda: factory.starts == 1, within_s=WITHIN_S, what="one starts it")
        factory.may_start.set()
        results = [outcome(one) for one in found]
    assert isinstance(results[0], ServerFailed)
    assert results[1:] == factory.made * 3
    assert factory.starts == 2


def _started_and_released(the_pool: BrokerPool, acquisition: Acquisition) -> Any:
    try:
        test_broker = the_pool.start(acquisition)
    except RepotError:
        the_pool.release(acquisition, broken=True)
        raise
    the_pool.release(acquisition)
    return test_broker


def test_what_never_starts_is_not_tried_for_ever(factory: Factory) -> None:
    the_pool, pending = broker_pool(factory), cases(6)
    factory.failing_starts = [ServerFailed("no memory") for _ in range(6)]
    for _ in range(5):
        with pytest.raises(ServerFailed, match="no memory"):
            the_pool.acquire_started(pending)
    assert factory.starts == 3


def test_what_fails_after_the_start_ends_what_was_started(factory: Factory) -> None:
    def serves(_: object) -> None:
        raise ZeroDivisionError

    the_pool = BrokerPool(serves, {}, None, {(BrokerKind.RABBITMQ, Needs.ANY): Provision(factory)})
    with pytest.raises(ZeroDivisionError):
        the_pool.acquire_started(cases(1))
    assert factory.ended == factory.made


@pytest.mark.parametrize("waits_for", ["a free one", "its start"])
def test_a_stop_ends_waiting(factory: Factory, stop: Event, waits_for: str) -> None:
    the_pool, pending = broker_pool(factory, stop, max_users=2 if waits_for == "its start" else 1), cases(2)
    first = the_pool.acquire(pending)
    with threads(2) as pool:
        factory.may_start.clear()
        starting = pool.submit(the_pool.start, first)
        waiting = pool.submit(lambda: the_pool.start(the_pool.acquire(pending)))
        wait_until(lambda: factory.starts == 1, within_s=WITHIN_S, what="one starts it")
        stop.set()
        assert isinstance(outcome(waiting), Interrupted)
        factory.may_start.set()
        assert outcome(starting) is factory.made[0]
    the_pool.close()
    assert factory.ended == factory.made


def test_after_a_stop_nothing_is_acquired_or_started(factory: Factory, stop: Event) -> None:
    the_pool, pending = broker_pool(factory, stop), cases(2)
    acquisition = the_pool.acquire(pending)
    stop.set()
    with pytest.raises(Interrupted):
        the_pool.start(acquisition)
    with pytest.raises(Interrupted):
        the_pool.acquire(pending)
    assert (factory.starts, len(pending)) == (0, 1)


def test_a_broken_broker_is_not_acquired_again_and_ends_with_its_last_user(factory: Factory) -> None:
    the_pool, pending = broker_pool(factory, max_users=2), cases(3)
    first, second = the_pool.acquire(pending), the_pool.acquire(pending)
    assert the_pool.start(first) is the_pool.start(second)
    the_pool.release(first, broken=True)
    assert factory.ended == []
    _, another, _ = the_pool.acquire_started(pending)
    assert [another] == factory.made[1:]
    the_pool.release(second)
    assert factory.ended == factory.made[:1]
    the_pool.close()
    assert factory.ended == factory.made


@pytest.mark.parametrize("error", [ServerFailed("gone"), ZeroDivisionError()])
def test_one_that_cannot_be_repaired_makes_room_for_another(factory: Factory, error: Exception) -> None:
    def restore() -> None:
        raise error

    factory.restore = restore
    the_pool, pending = broker_pool(factory), cases(2, Needs.OWN)
    acquisition = the_pool.acquire(pending)
    the_pool.start(acquisition)
    if isinstance(error, RepotError):
        the_pool.release(acquisition)
    else:
        with pytest.raises(ZeroDivisionError):
            the_pool.release(acquisition)
    assert factory.ended == factory.made
    the_pool.acquire_started(pending)
    assert len(factory.made) == 2


def test_a_repaired_one_is_used_again(factory: Factory) -> None:
    the_pool, pending = broker_pool(factory), cases(2, Needs.OWN)
    _, first, release = the_pool.acquire_started(pending)
    release()
    _, second, _ = the_pool.acquire_started(pending)
    assert first is second


def test_all_are_ended_even_if_one_fails(factory: Factory) -> None:
    the_pool, pending = broker_pool(factory, max_brokers=3), cases(3)
    for _ in range(3):
        the_pool.acquire_started(pending)
    factory.failing_ends = [ServerFailed("it does not end")]
    with pytest.raises(ServerFailed, match="does not end"):
        the_pool.close()
    assert len(factory.ended) == 3


@pytest.mark.parametrize("broken", [True, False])
def test_an_external_broker_has_one_user_at_a_time(factory: Factory, stop: Event, broken: bool) -> None:
    """Never repaired or ended, and acquired again whatever the case did."""
    own: Any = SimpleNamespace()
    the_pool = BrokerPool(
        lambda _: None,
        {BrokerKind.RABBITMQ: own},
        stop,
        {(BrokerKind.RABBITMQ, Needs.ANY): Provision(factory, max_users=8)},
    )
    pending = cases(2)
    first = the_pool.acquire(pending)
    assert the_pool.start(first) is own
    with threads(1) as pool:
        waiting = pool.submit(lambda: the_pool.start(the_pool.acquire(pending)))
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.5)
        the_pool.release(first, broken=broken)
        assert outcome(waiting) is own
    assert factory.starts == 0
