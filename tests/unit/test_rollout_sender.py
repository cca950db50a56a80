"""Which side a task goes to, without a broker: by its root id, and with the run that it belongs to."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from celery._state import _task_stack  # type: ignore[attr-defined] # not in the stubs
from kombu.exceptions import OperationalError

from repot.brokers.headers import ROLLOUT_HEADER
from repot.routing import sender as sender_module
from repot.routing.once import NotSent
from repot.routing.record import RolloutRecord
from repot.routing.sender import RolloutSender
from repot.routing.side import Side, Weights, side_of

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME, ROOT = "friday", "the root of the run"
ALL_TO_SOURCE = RolloutRecord(
    NAME, "redis://a", "amqp://b", "canary", 3, Weights(0.0), gather=False, who="ann", why="", updated_at=0
)
ALL_TO_TARGET = replace(ALL_TO_SOURCE, weights=Weights(1.0))


@dataclass
class Known:
    """The record as a process knows it."""

    found: RolloutRecord | None

    def record(self) -> RolloutRecord | None:
        return self.found


@dataclass
class Sent:
    """Where a task went, in order, with its options."""

    sides: list[Side] = field(default_factory=list)
    options: list[dict[str, Any]] = field(default_factory=list)
    failure: Exception | None = None

    def at(self, side: Side) -> Any:
        def send(_name: str, _args: Any, _kwargs: Any, **options: Any) -> str:
            if self.failure:
                raise self.failure
            self.sides.append(side)
            self.options.append(options)
            return str(side)

        return send


@dataclass
class Once:
    """What publishes to the target, once: a test says how it fails."""

    is_sent: bool = False
    may_have_arrived: bool = False
    failure: Exception | None = None

    @contextmanager
    def publishing(self, _pool: Any, _limit_s: float) -> Iterator[Once]:
        if isinstance(self.failure, NotSent):
            raise self.failure
        yield self


def _nothing() -> None:
    """Is never run."""


class Application:
    """An application on one side, with its sender; `sent` has where its tasks went. It is its own sibling."""

    def __init__(self, home: Side, record: RolloutRecord | None) -> None:
        self.celery = Celery("shop", set_as_current=False, broker="memory://")
        self.sent, self.home, self.known = Sent(), home, Known(record)
        self.sender = RolloutSender(self.celery, NAME, home, self.known, lambda: self, 5)  # type: ignore[arg-type, return-value]
        self.app, self.pool = self, None
        self.running = self.celery.task(name="running")(_nothing)

    @property
    def send_task(self) -> Any:
        """Send on the other side."""
        return self.sent.at(self.home.other)

    def send(self, **options: Any) -> Side:
        self.sender.send(self.sent.at(self.home), "note", (), {}, options)
        return self.sent.sides[-1]

    @contextmanager
    def within_a_task(self) -> Iterator[None]:
        """As code of a task that a worker runs."""
        self.sender.is_worker = True
        self.running.push_request(id="the task", root_id=ROOT, called_directly=False)
        _task_stack.push(self.running)
        try:
            yield
        finally:
            _task_stack.pop()
            self.running.pop_request()


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> Once:
    found = Once()
    monkeypatch.setattr(sender_module, "publishing_once", found.publishing)
    return found


SIDES = pytest.mark.parametrize("home", list(Side))


def away(home: Side) -> RolloutRecord:
    """Return the record by which every free task of a side goes to the other one."""
    return ALL_TO_TARGET if home is Side.SOURCE else ALL_TO_SOURCE


@SIDES
def test_a_free_task_goes_where_the_record_says(home: Side, once: Once) -> None:
    once.is_sent = True
    assert home.other == Application(home, away(home)).send()
    assert home == Application(home, away(home.other)).send()


@SIDES
def test_without_a_record_all_goes_to_the_source(home: Side, once: Once) -> None:
    once.is_sent = True
    assert Application(home, None).send() == Side.SOURCE


@SIDES
def test_what_a_task_sends_stays_with_its_root_whatever_the_weights(home: Side) -> None:
    made = Application(home, away(home))
    with made.within_a_task():
        assert [home, home] == [made.send(), made.send(root_id=ROOT)]


@SIDES
def test_a_root_id_of_its_own_is_free_within_a_task_as_well(home: Side, once: Once) -> None:
    """It is a run that has not begun: it must not stay on a side only because a task of that side sends it."""
    once.is_sent = True
    made = Application(home, away(home))
    with made.within_a_task():
        assert home.other == made.send(root_id="another run")


@SIDES
def test_when_a_side_is_to_become_empty_no_root_stays_there(home: Side, once: Once) -> None:
    once.is_sent = True
    made = Application(home, replace(away(home), gather=True))
    with made.within_a_task():
        assert home.other == made.send()


@SIDES
def test_a_root_id_that_a_worker_gives_outside_of_a_task_belongs_to_a_run(home: Side, once: Once) -> None:
    """Celery's worker sends parts of a chord so; a producer that gives one begins a run."""
    once.is_sent = True
    made = Application(home, away(home))
    assert home.other == made.send(root_id=ROOT)
    made.sender.is_worker = True
    assert [home, home.other] == [made.send(root_id=ROOT), made.send()]


def test_tasks_of_one_root_go_to_one_side(once: Once) -> None:
    once.is_sent = True
    made = Application(Side.SOURCE, replace(ALL_TO_SOURCE, weights=Weights(0.5)))
    roots = [f"root-{number}" for number in range(20)]
    assert [side_of(NAME, one, 0.5) for one in roots] == [made.send(root_id=one) for one in roots]
    ids = [f"id-{number}" for number in range(20)]
    assert [side_of(NAME, one, 0.5) for one in ids] == [made.send(task_id=one) for one in ids]


def test_a_task_s_weight_decides_before_the_default(once: Once) -> None:
    once.is_sent = True
    made = Application(Side.SOURCE, replace(ALL_TO_SOURCE, weights=Weights(0.0, tasks={"note": 1.0})))
    assert made.send() == Side.TARGET
    made.known.found = replace(ALL_TO_SOURCE, weights=Weights(0.0, queues={"celery": 1.0}))
    assert made.send() == Side.TARGET
    made.known.found = replace(ALL_TO_SOURCE, weights=Weights(0.0, queues={"mails": 1.0}))
    assert made.send() == Side.SOURCE


def test_a_message_says_to_which_side_it_was_sent_and_by_which_generation(once: Once) -> None:
    once.is_sent = True
    made = Application(Side.SOURCE, ALL_TO_TARGET)
    given = {"mine": "1"}
    made.send(headers=given)
    assert {"mine": "1", ROLLOUT_HEADER: f"{NAME}:3:target"} == made.sent.options[-1]["headers"]
    assert given == {"mine": "1"}
    made.known.found = replace(ALL_TO_SOURCE, generation=4)
    made.send()
    assert {ROLLOUT_HEADER: f"{NAME}:4:source"} == made.sent.options[-1]["headers"]


@pytest.mark.parametrize("is_unreachable", [True, False])
def test_what_was_surely_not_sent_to_the_target_goes_to_the_source(once: Once, *, is_unreachable: bool) -> None:
    once.failure = NotSent(is_unreachable=is_unreachable)
    once.failure.__cause__ = ConnectionRefusedError()
    made = Application(Side.SOURCE, ALL_TO_TARGET)
    assert made.send() == Side.SOURCE
    assert [
        made.sender.counters.of(Side.SOURCE).sent,
        made.sender.counters.of(Side.TARGET).sent,
        made.sender.counters.of(Side.TARGET).fallbacks,
    ] == [1, 0, 1]
    assert f"{NAME}:3:source" == made.sent.options[-1]["headers"][ROLLOUT_HEADER]
    # a target that answers is tried again at once, one that does not answer is passed by
    made.send()
    assert (1 if is_unreachable else 2) == made.sender.counters.of(Side.TARGET).publish_failures


def test_what_may_have_arrived_is_not_sent_again(once: Once) -> None:
    once.may_have_arrived = True
    made = Application(Side.SOURCE, ALL_TO_TARGET)
    made.sent.failure = ConnectionResetError()
    with pytest.raises(ConnectionResetError):
        made.send()
    assert made.sent.sides == []
    counts = made.sender.counters.of(Side.TARGET)
    assert (counts.sent, counts.fallbacks, counts.publish_failures) == (0, 0, 1)


def test_a_failure_at_home_is_counted_and_raised(once: Once) -> None:
    made = Application(Side.SOURCE, ALL_TO_SOURCE)
    made.sent.failure = OperationalError()
    with pytest.raises(OperationalError):
        made.send()
    assert (made.sender.counters.of(Side.SOURCE).sent, made.sender.counters.of(Side.SOURCE).publish_failures) == (0, 1)
    assert not once.is_sent


def test_a_caller_that_routes_by_itself_is_left_alone() -> None:
    made = Application(Side.SOURCE, ALL_TO_TARGET)
    assert made.send(router=made.celery.amqp.router) == Side.SOURCE
    assert "headers" not in made.sent.options[-1]


def test_the_side_of_a_run_is_its_home(once: Once) -> None:
    """As the outbox asks: a message that belongs to a run is published where the run is."""
    made = Application(Side.TARGET, ALL_TO_SOURCE)
    assert not once.is_sent
    assert made.sender.side_of_a_run("id", ROOT) is None
    with made.within_a_task():
        assert [made.sender.side_of_a_run("id", one) for one in (ROOT, "another run")] == [Side.TARGET, None]
    assert [made.sender.side_of_a_run("id", one) for one in (ROOT, "id", None)] == [Side.TARGET, None, None]
