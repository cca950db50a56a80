"""The controller's loop, on a store in a file: its lease, its fencing token, and what it does at each look."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING

import pytest

from repot.config import ExplicitSettings
from repot.errors import AlreadyControlled, StoreUnreachable
from repot.rollout import controller as controller_module
from repot.rollout.controller import Controller
from repot.rollout.observations import Observations
from repot.rollout.phases import Observed, Phase, Plan
from repot.rollout.store import ControllerStore
from repot.routing.database_store import DatabaseRolloutStore
from repot.routing.record import Change, RolloutRecords
from repot.routing.side import Side, Weights
from repot.routing.tally import Tally
from support.databases import with_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.routing.record import RolloutRecord
    from support.databases import FileDatabase

PREFIX, NAME = "test", "friday"
PLAN = Plan(steps=(0.1, 1.0), queues=("orders",))


class Silent:
    """A side whose broker says nothing of its queues."""

    def depths(self) -> None:
        return None


class Look:
    """What stands for the brokers and their workers: a test says what is seen."""

    def __init__(self, see: Callable[[RolloutRecord], Observed]) -> None:
        self.sides = dict.fromkeys(Side, Silent())
        self.see = see
        self.begun: list[RolloutRecord] = []
        self.is_closed = False

    def look(self, record: RolloutRecord, begun: RolloutRecord) -> Observed:
        self.begun.append(begun)
        # a controller that goes on and on is to fail here, and not at a time limit
        assert len(self.begun) <= 10
        return self.see(record)

    def close(self) -> None:
        self.is_closed = True


@dataclass
class Led:
    """A rollout on a store, as its controller has it; `before_reading` is called each time it reads the record."""

    lease_store: DatabaseRolloutStore
    name: str = NAME
    before_reading: Callable[[], object] = lambda: None
    plans: list[Plan] = field(default_factory=list)
    seen: Look = field(default_factory=lambda: Look(lambda _: Observed(obstacles=("not yet",))))

    def __post_init__(self) -> None:
        """Open what is kept in the store."""
        self.store = ControllerStore(self.lease_store, PREFIX, NAME)
        self.records = RolloutRecords(self.lease_store, PREFIX)
        self.tally = Tally(self.lease_store, PREFIX, NAME)
        self.observations = Observations(self.lease_store, PREFIX, NAME)

    def record(self) -> RolloutRecord:
        self.before_reading()
        found = self.records.read(NAME)
        assert found is not None
        return found

    def watch(self, plan: Plan) -> Look:
        self.plans.append(plan)
        return self.seen

    def until(self) -> int:
        """Return when the controller's lease ends, in milliseconds."""
        return int(self.lease_store.fields(f"{PREFIX}:rollout:{{{NAME}}}:controller")["until"])

    def control(self, stop: Event) -> RolloutRecord:
        return Controller(self, "first").run(stop)  # type: ignore[arg-type]

    def history(self) -> list[str]:
        return [one.why for one in self.records.history(NAME)]


@pytest.fixture
def led(sqlite: FileDatabase, monkeypatch: pytest.MonkeyPatch) -> Iterator[Led]:
    """A rollout that is being prepared; the controller looks again at once."""
    monkeypatch.setattr(controller_module, "INTERVAL_S", 0.01)
    with closing(DatabaseRolloutStore(ExplicitSettings(lease_store=with_tables(sqlite).url))) as store:
        found = Led(store)
        found.store.put_plan(PLAN)
        found.records.create(NAME, "redis://a", "amqp://b", Change("ann", "begun", phase=Phase.PREPARE))
        yield found


def test_a_controller_whose_lease_went_to_another_one_changes_nothing(led: Led) -> None:
    """It stood still after it had renewed its lease, and reads what the other controller has written meanwhile."""
    reads: list[str] = []

    def stand_still() -> None:
        reads.append("read")
        if len(reads) == 2:
            led.store.release("first")
            token = led.store.hold("second", 60)
            change = Change("second", "the other one's", phase=Phase.CANARY, weights=Weights(0.5))
            led.records.change(led.records.read(NAME), change, token=token)  # type: ignore[arg-type]

    led.before_reading = stand_still
    led.seen.see = lambda _: Observed(faults=("the target does not answer",))
    with pytest.raises(AlreadyControlled):
        led.control(Event())
    assert led.history() == ["begun", "the other one's"]
    assert led.store.holder() == "second"


def test_the_lease_is_renewed_before_each_look(led: Led) -> None:
    stop, ends = Event(), list[int]()

    def see(_: RolloutRecord) -> Observed:
        ends.append(led.until())
        if len(ends) == 3:
            stop.set()
        return Observed(obstacles=("not yet",))

    led.seen.see = see
    led.control(stop)
    assert ends[0] < ends[1] < ends[2]


def test_a_second_controller_is_refused_and_the_first_one_s_lease_ends_with_it(led: Led) -> None:
    stop = Event()

    def see(_: RolloutRecord) -> Observed:
        with pytest.raises(AlreadyControlled):
            Controller(led, "second").run(Event())  # type: ignore[arg-type]
        stop.set()
        return Observed(obstacles=("not yet",))

    led.seen.see = see
    led.control(stop)
    assert led.store.holder() is None
    assert led.seen.is_closed


def test_it_leads_until_the_end_and_keeps_each_look(led: Led) -> None:
    led.seen.see = lambda record: Observed(faults=("gone",) if record.phase == Phase.CANARY else (), is_empty=True)
    last = led.control(Event())
    assert (last.phase, last.weights.default) == (Phase.ABORTED, 0.0)
    assert led.history() == ["begun", "the target is ready", "gone", "the target is empty"]
    look = led.observations.looks.last()
    assert look is not None
    assert look.generation == 3


def test_a_step_begins_with_its_weights_and_not_with_a_pause(led: Led) -> None:
    change = Change("ann", "the first step", phase=Phase.CANARY, weights=Weights(0.1))
    step = led.records.change(led.record(), change)
    led.records.change(step, Change("ann", "lunch", phase=Phase.PAUSED))
    stop = Event()

    def see(_: RolloutRecord) -> Observed:
        stop.set()
        return Observed()

    led.seen.see = see
    led.control(stop)
    assert [step.generation] == [one.generation for one in led.seen.begun]


def test_a_store_that_is_away_ends_nothing(led: Led) -> None:
    """The controller looks again, and changes nothing meanwhile."""
    looks: list[str] = []

    def see(_: RolloutRecord) -> Observed:
        looks.append("look")
        if len(looks) == 1:
            message = "away"
            raise StoreUnreachable(message, hint="")
        return Observed(faults=("gone",), is_empty=True)

    led.seen.see = see
    assert led.control(Event()).phase == Phase.ABORTED


def test_a_plan_that_is_changed_is_followed_with_the_next_look(led: Led) -> None:
    changed, stop = Plan(steps=(0.3, 1.0), queues=("orders",)), Event()

    def see(record: RolloutRecord) -> Observed:
        led.store.put_plan(changed)
        if record.phase == Phase.CANARY:
            stop.set()
        return Observed(obstacles=() if len(led.seen.begun) == 2 else ("not yet",))

    led.seen.see = see
    assert led.control(stop).weights.default == 0.3
    assert [PLAN, changed] == led.plans
