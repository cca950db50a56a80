"""A mover with its journal in a SQLite file: what arrives, what goes back, and what the account says of both."""

from __future__ import annotations

import gc
from contextlib import closing
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from repot.brokers.headers import MAYBE_TWICE_HEADER, MoveStamp
from repot.brokers.journal import Direction, Lines
from repot.brokers.message import Message
from repot.brokers.moving import Outgoing, QueueReader, QueueTraits
from repot.brokers.publishing import CONFIRMED, Receipt, refused, unknown
from repot.brokers.reservation import Reservation, TakenMessage
from repot.config import ExplicitSettings
from repot.errors import BrokerUnreachable, LeaseLost, MoveStopped
from repot.migrate import orphan_wait
from repot.migrate.account import account_of, digests
from repot.migrate.control import Control, Limits, Spent, Until
from repot.migrate.database_journal import DatabaseJournal
from repot.migrate.garbage import seldom_collected
from repot.migrate.identity import identity_of
from repot.migrate.leases import LeasedJournal
from repot.migrate.mover import QueueMover
from repot.migrate.orphan_wait import OrphanMove
from repot.migrate.orphans import Selection
from repot.migrate.placement import Beside
from repot.migrate.route import Route
from repot.migrate.run import Run
from repot.migrate.translate import PriorityPolicy, Quarantine, Rules, Translation
from support.databases import with_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from support.databases import FileDatabase

QUEUE = "orders"
NOW = 1_700_000_000.0


def task(number: int, body: bytes = b"[[], {}, {}]", **headers: Any) -> Message:
    return Message(body, "application/json", "utf-8", {"id": f"id-{number}", "task": "pay", **headers}, {})


class Batch(Reservation):
    """Reserved messages of a source."""

    def __init__(self, source: Source, messages: Iterable[TakenMessage]) -> None:
        self._source = source
        super().__init__(messages)

    def _commit(self, ids: list[str]) -> None:
        self._source.on_commit(ids)

    def _give_back(self) -> None:
        left = [one.message for one in self.messages if one.id in self._open]
        self._source.came_back |= {id(one) for one in left}
        self._source.waiting[:0] = left


class Reader(QueueReader):
    """One connection to a source."""

    def __init__(self, source: Source) -> None:
        self._source, self._batches = source, list[Batch]()

    def take(self, limit: int, _name: str) -> Reservation:
        self._source.before_take()
        taken, self._source.waiting[:limit] = self._source.waiting[:limit], []
        came_back = self._source.came_back
        found = Batch(
            self._source, [TakenMessage(str(place), one, id(one) in came_back) for place, one in enumerate(taken)]
        )
        self._batches.append(found)
        return found

    def close(self) -> None:
        if self._source.ends_with_its_connection:
            for one in reversed(self._batches):
                one.give_back()


class Source:
    """Messages that wait, and what becomes of a commit."""

    def __init__(self, messages: Iterable[Message]) -> None:
        self.waiting = list(messages)
        self.came_back: set[int] = set()
        self.committed = self.renewed = 0
        self.quarantined: list[Outgoing] = []
        #: As on RabbitMQ; on Redis a reservation outlives its reader.
        self.ends_with_its_connection = True
        self.before_commit: Callable[[], object] = lambda: None
        self.before_take: Callable[[], object] = lambda: None

    def on_commit(self, ids: list[str]) -> None:
        if ids:
            self.before_commit()
        self.committed += len(ids)
        self.renewed += not ids

    def reader(self, _queue: str, **_options: Any) -> Reader:
        return Reader(self)

    def prepare(self, _queues: set[str]) -> None:
        """It has them."""

    def deliver(self, outgoing: Sequence[Outgoing], _on_wait: Any) -> list[Receipt]:
        self.quarantined += outgoing
        return [CONFIRMED] * len(outgoing)


class Target:
    """What has arrived; a test says what is answered to the next messages."""

    def __init__(self) -> None:
        self.arrived: list[Outgoing] = []
        self.answers: list[Receipt] = []
        self.before: Callable[[], object] = lambda: None
        self.after: Callable[[], object] = lambda: None

    def deliver(self, outgoing: Sequence[Outgoing], _on_wait: Any, on_sent: Any) -> tuple[Receipt, ...]:
        self.before()
        receipts = [self.answers.pop(0) if self.answers else CONFIRMED for _ in outgoing]
        self.arrived += [one for one, receipt in zip(outgoing, receipts, strict=True) if receipt.is_confirmed]
        on_sent()
        self.after()
        return tuple(receipts)

    @property
    def ids(self) -> list[str]:
        return [str(one.message.headers["id"]) for one in self.arrived]

    @property
    def numbers(self) -> list[int]:
        return [stamp.number for one in self.arrived if (stamp := MoveStamp.of(one.message.headers))]

    @property
    def marked(self) -> list[str]:
        return [str(one.message.headers["id"]) for one in self.arrived if MAYBE_TWICE_HEADER in one.message.headers]


class Held:
    """The hold of a queue, which no other mover wants."""

    def __init__(self) -> None:
        self.renewals = 0

    def renew(self) -> None:
        self.renewals += 1


class Way:
    """A move of one queue from a source to a target."""

    def __init__(self, journal: DatabaseJournal, number: int = 5, **traits: Any) -> None:
        self.journal, self.source, self.target = journal, Source(map(task, range(number))), Target()
        self.hold, self.stop, self.traits = Held(), Event(), QueueTraits(**traits)
        self.token = journal.acquire("me", 60)

    def control(self, limits: Limits) -> Control:
        def check() -> None:
            """The target has its queue."""

        leased = LeasedJournal(self.journal, self.token, limits.lease_s)
        return Control(limits, Spent(), self.stop, self.hold, leased, lambda: 0, check, lambda _: None, _pause_s=0.001)  # type: ignore[arg-type]

    def mover(self, window: int = 2, **limits: Any) -> QueueMover:
        rules = Rules(PriorityPolicy.INVERT, queues={QUEUE: QUEUE})
        translation = Translation(QUEUE, QueueTraits(lowest_first=True), self.traits, rules, lambda _: self.traits)
        route = Route("m", QUEUE, self.source, translation, QUEUE)  # type: ignore[arg-type]
        control = self.control(Limits(window=window, lease_s=60, **limits))
        return QueueMover(route, Beside(self.journal, self.target), control)  # type: ignore[arg-type]

    @property
    def account(self) -> dict[str, int]:
        found = account_of(self.journal.read(), QUEUE)
        assert found.closes, found
        names = ("reserved", "delivered", "returned", "quarantined", "open", "maybe_twice", "recognised")
        return {name: count for name in names if (count := getattr(found, name))}


@pytest.fixture
def journal(sqlite: FileDatabase) -> Iterator[DatabaseJournal]:
    found = DatabaseJournal(ExplicitSettings(lease_store=with_tables(sqlite).url), "m", Direction.FORTH)
    found.create({"state": "running"})
    with closing(found._database):
        yield found


@pytest.fixture
def way(journal: DatabaseJournal) -> Way:
    return Way(journal)


def test_everything_arrives_once_in_order_under_its_number_and_the_digests_agree(way: Way) -> None:
    way.mover().run()
    assert ([f"id-{one}" for one in range(5)], [1, 2, 3, 4, 5]) == (way.target.ids, way.target.numbers)
    assert (way.source.waiting, way.source.committed, way.target.marked) == ([], 5, [])
    assert way.account == {"reserved": 5, "delivered": 5}
    taken, moved = digests(way.journal.read(), QUEUE)
    assert taken == moved != "0" * 16


def test_a_message_is_settled_in_the_journal_before_it_leaves_the_source(way: Way) -> None:
    """A mover that dies in between gets it again, and the journal says that it was delivered."""
    seen: list[dict[str, int]] = []
    way.source.before_commit = lambda: seen.append(way.account)
    way.mover(window=5).run()
    assert seen == [{"reserved": 5, "delivered": 5}]


def test_what_was_delivered_and_comes_back_is_not_sent_again(way: Way) -> None:
    """The source went away before the commit."""
    errors = [BrokerUnreachable("away", hint="")]

    def fail() -> None:
        if errors:
            raise errors.pop()

    way.source.before_commit = fail
    way.mover().run()
    assert [f"id-{one}" for one in range(5)] == way.target.ids
    assert way.account == {"reserved": 5, "delivered": 5, "recognised": 2}
    assert way.source.waiting == []


def test_what_may_have_arrived_is_sent_again_with_a_mark_and_its_number(way: Way) -> None:
    way.target.answers = [CONFIRMED, unknown("no answer")]
    way.mover().run()
    assert [f"id-{one}" for one in range(5)] == way.target.ids
    assert (way.target.numbers, way.target.marked) == ([1, 2, 3, 4, 5], ["id-1"])
    assert way.account == {"reserved": 5, "delivered": 5, "maybe_twice": 1}


def test_what_is_refused_is_sent_again_without_a_mark(way: Way) -> None:
    way.target.answers = [refused("full"), CONFIRMED]
    way.mover().run()
    assert (way.target.ids, way.target.marked) == (["id-1", "id-0", "id-2", "id-3", "id-4"], [])
    assert way.account == {"reserved": 5, "delivered": 5}


def test_a_window_that_was_open_when_its_mover_died_goes_out_under_its_numbers(way: Way) -> None:
    """Whether the target has it is not known: its messages are marked, and what is sent twice has one number."""

    def die() -> None:
        raise KeyboardInterrupt

    way.target.before = die
    with pytest.raises(KeyboardInterrupt):
        way.mover().run()
    assert way.account == {"reserved": 2, "open": 2}
    way.target.before = lambda: None
    way.token = way.journal.acquire("next", 60, replaced="me")
    way.mover().run()
    assert ([f"id-{one}" for one in range(5)], [1, 2, 3, 4, 5]) == (way.target.ids, way.target.numbers)
    assert way.target.marked == ["id-0", "id-1"]
    assert way.account == {"reserved": 7, "delivered": 5, "returned": 2, "maybe_twice": 2}
    taken, moved = digests(way.journal.read(), QUEUE)
    assert taken == moved


def test_a_mover_whose_lease_another_one_has_writes_nothing(way: Way) -> None:
    mover = way.mover()
    way.journal.acquire("another one", 60, replaced="me")
    with pytest.raises(LeaseLost):
        mover.run()
    assert (way.target.ids, len(way.source.waiting)) == ([], 5)


def test_one_that_loses_its_lease_while_the_target_writes_commits_nothing(way: Way) -> None:
    way.target.before = lambda: way.journal.acquire("another one", 60, replaced="me")
    with pytest.raises(LeaseLost):
        way.mover().run()
    assert (len(way.source.waiting), way.source.committed) == (5, 0)


def test_a_step_of_the_journal_that_is_repeated_counts_once(journal: DatabaseJournal) -> None:
    """The answer to the first attempt was lost."""
    step = journal.step(journal.acquire("me", 60), Lines(QUEUE, add={"reserved": 3}))
    for _ in range(2):
        journal.apply(step, 60)
    assert journal.read()["reserved:orders"] == "3"


@pytest.mark.parametrize("ends_with_its_connection", [True, False])
def test_a_stop_gives_back_what_was_not_written(way: Way, *, ends_with_its_connection: bool) -> None:
    way.source.ends_with_its_connection = ends_with_its_connection
    way.target.answers = [CONFIRMED, refused("full")]
    way.target.before = way.stop.set
    with pytest.raises(MoveStopped):
        way.mover().run()
    assert way.target.ids == ["id-0"]
    assert [one.headers["id"] for one in way.source.waiting] == ["id-1", "id-2", "id-3", "id-4"]
    assert way.account == {"reserved": 2, "delivered": 1, "returned": 1}


@pytest.mark.parametrize("ends_with_its_connection", [True, False])
def test_a_stop_gives_back_what_was_read_ahead(way: Way, *, ends_with_its_connection: bool) -> None:
    way.source.ends_with_its_connection = ends_with_its_connection
    way.target.answers = [CONFIRMED, refused("full")]
    way.target.after = way.stop.set
    with pytest.raises(MoveStopped):
        way.mover().run()
    assert way.target.ids == ["id-0"]
    assert sorted(str(one.headers["id"]) for one in way.source.waiting) == ["id-1", "id-2", "id-3", "id-4"]


def test_no_more_than_the_limit_is_moved_and_the_rest_stays(way: Way) -> None:
    way.mover(limit=3).run()
    assert way.target.ids == ["id-0", "id-1", "id-2"]
    assert [one.headers["id"] for one in way.source.waiting] == ["id-3", "id-4"]
    assert way.account == {"reserved": 3, "delivered": 3}


def test_what_the_target_never_takes_is_kept_on_the_source(way: Way) -> None:
    way.target.answers = [refused("?", is_too_large=True)]
    way.mover().run()
    assert way.target.ids == ["id-1", "id-2", "id-3", "id-4"]
    assert [(one.queue, one.message.headers["id"]) for one in way.source.quarantined] == [("orders.dead", "id-0")]
    assert way.account == {"reserved": 5, "delivered": 4, "quarantined": 1}


def test_an_operator_stops_it_by_the_journal(way: Way) -> None:
    """The mover reads what is asked with the next window that it opens, and writes that one."""
    way.target.before = lambda: way.journal.ask({"wanted": "stop"}, "ann stops it")
    with pytest.raises(MoveStopped, match="by an operator"):
        way.mover().run()
    assert way.account == {"reserved": 4, "delivered": 4}
    assert len(way.source.waiting) == 1


def test_an_operator_is_heard_while_the_queue_that_is_followed_is_empty(way: Way) -> None:
    way.source.waiting.clear()
    looks: list[str] = []

    def ask() -> None:
        looks.append("look")
        # a mover that goes on and on is to fail here, and not at a time limit
        assert len(looks) < 10
        way.journal.ask({"wanted": "stop"}, "{}")

    way.source.before_take = ask
    with pytest.raises(MoveStopped, match="by an operator"):
        way.mover(until=Until.FOLLOW).run()


def test_the_lease_of_what_is_written_is_renewed_while_the_target_refuses_it(way: Way) -> None:
    way.target.answers = [refused("full"), refused("full")]
    way.mover(limit=2).run()
    assert way.source.renewed
    assert way.target.ids == ["id-0", "id-1"]


def test_a_broker_that_is_away_for_too_long_ends_it(way: Way) -> None:
    error = BrokerUnreachable("away", hint="")

    tries: list[str] = []

    def fail() -> None:
        tries.append("try")
        # a mover that goes on and on is to fail here, and not at a time limit
        assert len(tries) < 10
        raise error

    way.target.before = fail
    with pytest.raises(MoveStopped, match="a broker was away"):
        way.mover(patience_s=0).run()
    assert (way.target.ids, len(way.source.waiting)) == ([], 5)


def test_outages_with_an_answer_between_them_are_not_one(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue of a move that follows is empty meanwhile."""
    passed, error = [0.0], BrokerUnreachable("away", hint="")
    monkeypatch.setattr("repot.migrate.control.monotonic", lambda: monotonic() + passed[0])
    looks: list[str] = []

    def fail_at_times() -> None:
        passed[0] += 400
        looks.append("look")
        if len(looks) % 2:
            raise error
        if len(looks) > 5:
            way.stop.set()

    way.source.before_take = fail_at_times
    way.source.waiting.clear()
    with pytest.raises(MoveStopped, match="interrupted"):
        way.mover(patience_s=300, until=Until.FOLLOW).run()
    assert len(looks) > 5


def test_a_wait_for_orphans_ends_at_its_deadline_also_while_a_broker_is_away(
    journal: DatabaseJournal, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphan_wait, "take_back", lambda *_: "nothing is given back")
    looks: list[str] = []

    def fail(_run: Run) -> None:
        looks.append("look")
        # a wait that goes on and on is to fail here, and not at a time limit
        assert len(looks) < 5
        message = "away"
        raise BrokerUnreachable(message, hint="")

    run = Run("me", "1", Event(), lambda *_: None)
    source: Any = None
    limits = Limits(deadline_s=2)
    with pytest.raises(MoveStopped, match="the deadline of 2 s is over"):
        OrphanMove(source, journal, Selection((QUEUE,)), limits, run, fail, waits=True).move()
    # an outage is logged once
    assert caplog.text.count("the wait is interrupted") == 1


def test_the_hold_of_the_queue_is_renewed_when_a_third_of_its_lease_is_over(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("repot.migrate.control.monotonic", lambda: now[0])
    control = way.control(Limits(lease_s=60))
    for _ in range(6):
        assert control.goes_on()
        now[0] += 15
    # at 0, 30 and 60 seconds
    assert way.hold.renewals == 3


def translated(message: Message, source: QueueTraits | None = None, target: QueueTraits | None = None) -> Any:
    rules = Rules(queues={QUEUE: "bills"})
    to = target or QueueTraits()
    return Translation(QUEUE, source or QueueTraits(lowest_first=True), to, rules, lambda _: to).translate(message, NOW)


@pytest.mark.parametrize(("given", "expected"), [(0, 9), (3, 6), (9, 0), (None, 9), (12, 0)])
def test_priorities_are_turned_round_between_brokers_that_count_them_the_other_way(
    given: int | None, expected: int
) -> None:
    message = task(1)
    properties = {} if given is None else {"priority": given}
    found = translated(Message(message.body, "application/json", "utf-8", message.headers, properties))
    assert (expected, "bills") == (found.message.properties["priority"], found.queue)


def test_between_brokers_that_count_alike_priorities_stay() -> None:
    message = Message(b"[]", "application/json", "utf-8", {}, {"priority": 3})
    assert translated(message, QueueTraits(), QueueTraits()).message.properties["priority"] == 3


def test_a_task_with_an_eta_waits_at_the_target_for_the_rest_of_its_time() -> None:
    due = task(1, eta="2023-11-14T22:13:50+00:00")  # half a minute after NOW
    assert [translated(due, target=QueueTraits(delays=one)).delay_s for one in (True, False)] == [30, 0]


def test_what_has_expired_or_cannot_be_read_is_quarantined_and_says_why() -> None:
    late = task(1, expires="2023-11-14T22:13:19+00:00")
    pickled = Message(b"", "application/x-python-serialize", "binary", {}, {})
    broken, large = task(2, body=b"{"), task(3, body=b"0" * 11)
    found = [translated(one, target=QueueTraits(max_bytes=10)) for one in (late, pickled, broken, large)]
    assert [str(one.reason) for one in found] == ["too_large", "pickled", "undecodable", "too_large"]
    only_late = translated(late)
    assert isinstance(only_late, Quarantine)
    assert (
        str(only_late.reason),
        only_late.dead_letter.queue,
        only_late.at_source,
    ) == ("expired", "bills.dead", False)
    assert found[3].at_source


def test_the_rest_of_a_lifetime_goes_along() -> None:
    message = task(1)
    properties = {"expiration": "60000", "timestamp": NOW - 20}
    found = translated(Message(message.body, "application/json", "utf-8", message.headers, properties))
    assert found.message.properties["expiration"] == "40000"


def test_the_identity_of_a_message_is_its_run_and_its_body() -> None:
    one = identity_of(task(1))
    assert one == identity_of(Message(b"[[], {}, {}]", "x", "y", {"id": "id-1", "other": 1}, {"priority": 3}))
    others = [task(2), task(1, body=b"[]"), task(1, retries=1), task(1, eta="2030-01-01T00:00:00")]
    assert len({one, *map(identity_of, others)}) == 5


@pytest.mark.parametrize("before", [(700, 10, 10), (90_000, 20, 20)])
def test_python_looks_for_garbage_as_before_once_messages_are_moved(before: tuple[int, int, int]) -> None:
    own = gc.get_threshold()
    gc.set_threshold(*before)
    try:
        with seldom_collected():
            assert gc.get_threshold() == (max(before[0], 50_000), *before[1:])
        assert gc.get_threshold() == before
    finally:
        gc.set_threshold(*own)
