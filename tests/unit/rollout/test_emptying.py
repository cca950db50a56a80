"""A side that is to become empty: when it is, and the account of it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from repot.config import ExplicitSettings
from repot.rollout.emptying import Emptying
from repot.rollout.phases import Observed, Phase, Plan
from repot.rollout.store import ControllerStore
from repot.rollout.watch import Watch
from repot.routing.database_store import DatabaseRolloutStore
from repot.routing.record import RolloutRecord
from repot.routing.side import Side, Weights
from repot.routing.tally import WorkerState
from support.databases import with_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.databases import FileDatabase

#: The drain begins 1,000 s after the rollout, in which the source received a task each second.
BEGAN_AT, DRAINS_AT = 1000.0, 2000.0
USUAL = {"sent": 1000, "outcome:received:shop.charge": 1000, "outcome:succeeded:shop.charge": 1000}


@dataclass
class Queues:
    """A side as its broker shows it; a test says what it holds."""

    held: int | None = 0
    left: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    unsure: tuple[str, ...] = ()
    lag_s: float = 0.0
    dead: str = ""
    is_at_rest: bool | None = None
    has_waiting: bool = False

    def is_empty(self) -> bool | None:
        if self.is_at_rest is not None:
            return self.is_at_rest
        return None if self.held is None else not self.held

    def dead_letters(self) -> str:
        return self.dead


@dataclass
class Carried:
    """A move between the sides."""

    rollout: str = "friday"
    is_at_work: bool = False
    total: int = 0
    sides: list[Side] = field(default_factory=list)
    reserved: set[Side] = field(default_factory=set)

    def go_on(self, side: Side) -> None:
        self.sides.append(side)
        self.is_at_work = True

    def may_hold(self, side: Side) -> bool:
        return side in self.reserved

    def said(self) -> str:
        return f"{self.total} moved to the other side"


class Emptied:
    """What is looked at, at instants that a test names."""

    def __init__(self, store: DatabaseRolloutStore, **changes: Any) -> None:
        self.at, self.found = DRAINS_AT, dict(USUAL)
        self.queues, self.carried = Queues(), Carried()
        #: By how many seconds the last reports of the workers are older than the look.
        self.reports_age_s: dict[str, float] = {"w1": 0.0, "w2": 0.0}
        self.plan = Plan(queues=("orders", "mails"), **changes)
        self._store = ControllerStore(store, "test", "friday")
        self.begin()

    def begin(self) -> None:
        """Begin to look, as a controller that has just been started."""
        sides: Any = dict.fromkeys(Side, self.queues)
        self._emptying = Emptying(self.plan, self, self._store, sides, self.carried, lambda: BEGAN_AT)  # type: ignore[arg-type]

    def now(self) -> float:
        return self.at

    def counts(self, _side: Side) -> dict[str, int]:
        return self.found

    def workers(self) -> list[WorkerState]:
        return [
            WorkerState(node, side, "running", ("orders",), reported_at=self.at - age_s)
            for node, age_s in self.reports_age_s.items()
            for side in Side
        ]

    def receive(self, count: int = 1, *, sent: int = 0, **outcomes: int) -> None:
        added = {"received": count, "succeeded": count, **outcomes}
        for name, number in added.items():
            key = f"outcome:{name}:shop.charge"
            self.found[key] = self.found.get(key, 0) + number
        self.found["sent"] += sent

    def look(self, after_s: float, phase: Phase = Phase.DRAIN) -> Observed:
        """Look so many seconds after the drain began."""
        self.at = DRAINS_AT + after_s
        changed = {"gather": True, "who": "ann", "why": "", "updated_at": DRAINS_AT}
        record = RolloutRecord("friday", "a", "b", phase, 7, Weights(), **changed)  # type: ignore[arg-type]
        return self._emptying.look(record, Side.SOURCE if phase is Phase.DRAIN else Side.TARGET)


@pytest.fixture
def made(sqlite: FileDatabase) -> Iterator[Callable[..., Emptied]]:
    with closing(DatabaseRolloutStore(ExplicitSettings(lease_store=with_tables(sqlite).url))) as store:
        yield lambda **changes: Emptied(store, **changes)


def test_a_side_is_not_empty_between_two_messages_of_a_producer_that_does_not_follow(
    made: Callable[..., Emptied],
) -> None:
    side = made()
    # it sends each 8 seconds; all queues are empty in between
    looked = []
    for second in range(40):
        if second % 8 == 6:
            side.receive()
        looked.append(side.look(second))
    assert not any(one.is_empty for one in looked)
    assert "which counts once its workers receive nothing for 10 s" in looked[1].left[0]
    assert "the source received 5 tasks after the change that no producer" in looked[-1].account
    # from then on it waits for the longest time, also under another controller
    side.begin()
    side.look(40)
    assert not side.look(339).is_empty
    ended = side.look(341)
    assert ended.is_empty
    assert "5 more than were counted as sent" in ended.account


def test_what_a_busy_worker_reports_late_is_no_strangers(made: Callable[..., Emptied]) -> None:
    """It had ended before the queues were looked at, so that they did not hold it, and its worker had not said so."""
    side = made()
    for second in range(8):
        # of two workers one reports nothing for four seconds
        side.reports_age_s["w2"] = max(0, second - 3)
        side.look(second)
    side.receive(5)
    side.reports_age_s["w2"] = 0
    looked = [side.look(second) for second in range(8, 30)]
    assert not [one.account for one in looked if "that no producer" in one.account]
    assert looked[-1].is_empty
    # and what comes after that is
    side.receive(2)
    assert "the source received 2 tasks after the change that no producer" in side.look(30).account


def test_a_side_of_seldom_tasks_is_quiet_for_longer(made: Callable[..., Emptied]) -> None:
    side = made()
    side.found = {name: count // 50 for name, count in USUAL.items()}
    # 20 tasks in 1,000 s: ten pauses are 500 s, and five minutes are enough
    side.look(0)
    side.look(299)
    assert not side.look(299).is_empty
    assert side.look(301).is_empty


@pytest.mark.parametrize(("quiet_s", "ends_at"), [(0.0, 0), (2.0, 2), (60.0, 60)])
def test_the_time_can_be_stated(made: Callable[..., Emptied], quiet_s: float, ends_at: int) -> None:
    side = made(quiet_s=quiet_s)
    assert ends_at == next(second for second in range(100) if side.look(second).is_empty)


def test_what_waited_and_what_was_sent_late_are_no_strangers(made: Callable[..., Emptied]) -> None:
    side = made()
    side.queues.held = 30
    side.look(5)
    side.queues.held = 0
    side.receive(35, sent=5)
    # runs of a second time
    side.receive(4, redelivered=4)
    side.receive(3, retries_received=3)
    assert "no producer of" not in side.look(20).account
    assert "no producer of" not in side.look(40).account
    side.receive()
    assert "received 1 tasks after the change" in side.look(41).account


@pytest.mark.parametrize("phase", [Phase.DRAIN, Phase.ABORT])
def test_a_side_is_not_empty_while_a_move_is_at_work(made: Callable[..., Emptied], phase: Phase) -> None:
    """What it holds is on neither side."""
    side = made(moves=True, quiet_s=0.0)
    side.queues.held, side.queues.has_waiting, side.carried.total = 5, True, 3
    assert side.look(0, phase).is_empty is False
    assert [Side.SOURCE if phase is Phase.DRAIN else Side.TARGET] == side.carried.sides
    side.queues.held, side.queues.has_waiting = 0, False
    assert not side.look(1, phase).is_empty
    side.carried.is_at_work, side.carried.total = False, 5
    side.found["sent"] += 5
    ended = side.look(2, phase)
    assert ended.is_empty is True
    assert ended.account == "1005 messages sent there, 1000 tasks finished there, 5 moved to the other side"
    side.queues.held = None
    assert not side.look(3, phase).is_empty


@pytest.mark.parametrize(
    ("held", "reserved", "goes_on"),
    [(5, {Side.SOURCE}, True), (5, set(), False), (0, {Side.SOURCE}, False), (0, {Side.TARGET}, True)],
)
def test_a_move_that_ended_early_goes_on_where_nothing_waits(
    made: Callable[..., Emptied], held: int, reserved: set[Side], goes_on: bool
) -> None:
    """What it has reserved is held; so is what workers run, which is theirs. Nothing counts that of the other side."""
    side = made(moves=True)
    side.queues.held, side.carried.reserved = held, reserved
    side.look(0)
    assert side.carried.sides == ([Side.SOURCE] if goes_on else [])


@pytest.mark.parametrize(("phase", "other"), [(Phase.ABORT, Side.SOURCE), (Phase.DRAIN, Side.TARGET)])
def test_a_side_is_not_empty_before_the_move_of_the_other_one_is_settled(
    made: Callable[..., Emptied], phase: Phase, other: Side
) -> None:
    """An abort out of a drain: what that had reserved stayed in its journal."""
    side = made(moves=True, quiet_s=0.0)
    side.queues.held, side.carried.reserved = 0, {other}
    side.look(0, phase)
    side.carried.is_at_work = False
    assert not side.look(1, phase).is_empty
    side.carried.is_at_work, side.carried.reserved = False, set()
    assert side.look(2, phase).is_empty


def test_the_account_adds_up_or_says_by_how_much_not(made: Callable[..., Emptied]) -> None:
    side = made(quiet_s=0.0)
    side.receive(16, sent=32, succeeded=0, retried=16)
    account = side.look(0).account
    assert account.startswith(
        "1032 messages sent there, 1000 tasks finished there, 16 sent again; 16 of them have no counted end"
    )
    side.receive(20)
    assert "; 4 more than were counted as sent" in side.look(1).account
    side.found["sent"] += 4
    assert side.look(2).account == "1036 messages sent there, 1020 tasks finished there, 16 sent again"


def test_dead_letters_are_in_the_account(made: Callable[..., Emptied]) -> None:
    side = made(quiet_s=0.0)
    side.queues.dead = "12 dead letters stay on the target"
    assert side.look(0, Phase.ABORT).account.endswith("; 12 dead letters stay on the target")


@pytest.mark.parametrize(
    ("moves", "way"), [(False, ", or `repot rollout change friday --drain move` carries"), (True, "")]
)
def test_a_side_on_which_nothing_ends_asks_a_person(made: Callable[..., Emptied], moves: bool, way: str) -> None:
    side = made(moves=moves)
    side.queues.held, side.queues.left = 9, ("the target has messages of 'orders': in hand",)
    side.look(0, Phase.ABORT)
    assert not any("restart its workers" in one for one in side.look(59, Phase.ABORT).left)
    (asked,) = [one for one in side.look(61, Phase.ABORT).left if "restart its workers" in one]
    assert "no task has ended on the target for a minute" in asked
    assert (way in asked) if way else "repot rollout change" not in asked
    side.receive()
    assert not any("restart its workers" in one for one in side.look(62, Phase.ABORT).left)


@pytest.mark.parametrize(("phase", "side"), [(Phase.DRAIN, Side.SOURCE), (Phase.ABORT, Side.TARGET)])
def test_a_drain_empties_the_source_and_an_abort_the_target(phase: Phase, side: Side) -> None:
    looked: list[Side] = []

    class Looks:
        def look(self, _record: RolloutRecord, at: Side) -> Observed:
            looked.append(at)
            return Observed()

        def now(self) -> float:
            return DRAINS_AT

        def stop(self) -> None:
            """No synthetic task runs."""

    each: Any = Looks()
    record = RolloutRecord("friday", "a", "b", phase, 7, Weights(), gather=True, who="", why="", updated_at=DRAINS_AT)
    Watch(Plan(), each, each, {}, each, each, each, each).look(record, record)
    assert [side] == looked
