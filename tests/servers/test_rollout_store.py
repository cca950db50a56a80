"""What a rollout keeps in its lease store: the same rules on Redis and on each database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from threading import Barrier
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from sqlalchemy import event, func, select, update

from repot.chaos.runner.proxies import Proxy
from repot.config import ExplicitSettings
from repot.database import rollout_tables as tables
from repot.database.schema import now
from repot.errors import RepotError, RolloutNotFound, StoreMisconfigured, StoreRefused, StoreUnreachable
from repot.rollout.observations import Observations
from repot.rollout.reporting import reporting
from repot.rollout.store import ControllerStore
from repot.routing.beat_lease import BeatLease, beat_holder
from repot.routing.database_rows import Rows
from repot.routing.database_store import DatabaseRolloutStore
from repot.routing.record import Change, RolloutRecords
from repot.routing.revoked import RevokedIds
from repot.routing.side import Side
from repot.routing.store import LEASE
from repot.routing.synthetic import SyntheticTask, SyntheticTasks
from repot.routing.tally import Tally, WorkerState
from repot.store.lease import acquiring
from repot.testbed import LOOPBACK, free_port
from repot.waiting import wait_until
from repot.worker.rollout_store import open_rollout_store
from support.databases import DATABASES, PASSWORD, with_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.routing.store import RolloutStore
    from repot.testbed import Server
    from support.databases import PrivateDatabase

pytestmark = pytest.mark.promise("redis", "postgresql")

WORKER = WorkerState("celery@a", "source", "running", ("orders",))


def prefix() -> str:
    return f"test-{uuid4()}"


@pytest.fixture(params=["redis", "valkey", *DATABASES])
def url(request: pytest.FixtureRequest) -> str:
    """The address of a lease store."""
    server = request.getfixturevalue(request.param)
    return str((with_tables(server) if request.param in DATABASES else server).url)


@pytest.fixture
def store(url: str) -> Iterator[RolloutStore]:
    with closing(open_rollout_store(ExplicitSettings(lease_store=url))) as found:
        yield found


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest) -> Iterator[DatabaseRolloutStore]:
    """A store in a database."""
    url = with_tables(request.getfixturevalue(request.param)).url
    with closing(DatabaseRolloutStore(ExplicitSettings(lease_store=url))) as found:
        yield found


def together(number: int, act: Callable[[int], Any]) -> list[Any]:
    """Call `act` in so many threads at one time."""
    barrier = Barrier(number)

    def begin(one: int) -> Any:
        barrier.wait()
        return act(one)

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(begin, range(number)))


def test_named_values(store: RolloutStore) -> None:
    key, other = prefix(), prefix()
    assert (store.fields(key), store.field(key, "a"), store.text(other)) == ({}, None, None)
    store.put(key, {"a": "1", "b": "2"})
    store.put(key, {"b": "3", "B": ""})
    assert store.fields(key) == {"a": "1", "b": "3", "B": ""}
    assert [store.put_first(key, name, "5") for name in ("a", "c")] == ["1", "5"]
    store.drop(key, "a")
    store.drop(key, "a")
    assert (store.field(key, "a"), store.field(key, "c")) == (None, "5")
    for words in ("first", "second \N{SNOWMAN}" * 10_000):
        store.put_text(other, words)
        assert words == store.text(other)
    store.forget(key, other)
    assert (store.fields(key), store.text(other)) == ({}, None)


def test_scores_only_grow(store: RolloutStore) -> None:
    key = prefix()
    store.raise_scores(key, {"hourly": 1.5, "daily": 1_700_000_000.123456})
    store.raise_scores(key, {"hourly": 1.25, "daily": 1_700_000_000.123457, "weekly": 2.0})
    assert store.scores(key) == {"hourly": 1.5, "daily": 1_700_000_000.123457, "weekly": 2.0}
    assert {"daily", "weekly"} == store.scores(key, since=2.0).keys()


def test_a_series_keeps_the_latest_points_and_none_twice(store: RolloutStore) -> None:
    key = prefix()
    assert (store.lines(key), store.ends(key)) == ([], [])
    for line in ("1", "2", "2", "3"):
        store.step("append", [key], [line, 3])
    assert store.lines(key) == ["1", "2", "3"]
    store.step("append", [key], ["4", 3])
    assert (store.lines(key), store.ends(key)) == (["2", "3", "4"], ["2", "4"])
    observations = Observations(store, prefix(), "shop")
    observations.add({"at": 1.5})
    assert (observations.ends(), observations.series()) == ([{"at": 1.5}] * 2, [{"at": 1.5}])


def test_the_clock_is_the_servers(store: RolloutStore) -> None:
    first = store.now()
    assert 0 <= store.now() - first < 60


def test_a_plan_that_does_not_exist_is_begun_by_name(store: RolloutStore) -> None:
    with pytest.raises(RolloutNotFound) as raised:
        ControllerStore(store, prefix(), "friday").plan()
    assert raised.value.hint == "`repot rollout start friday` begins one."


def test_a_report_counts_once(store: RolloutStore) -> None:
    tally, process = Tally(store, prefix(), "shop"), uuid4().hex
    for number, counts in ((1, {"sent": 2, "failed": 1}), (1, {"sent": 2, "failed": 1}), (2, {"sent": 3}), (3, {})):
        tally.add(Side.TARGET, process, number, counts, WORKER if number > 1 else None)
    assert (tally.counts(Side.TARGET), tally.counts(Side.SOURCE)) == ({"sent": 5, "failed": 1}, {})
    (worker,) = tally.workers()
    assert (worker.node, worker.queues) == ("celery@a", ("orders",))
    assert abs(tally.now() - worker.reported_at) < 60


def test_workers_of_one_name_on_both_sides_have_a_state_each(store: RolloutStore) -> None:
    tally = Tally(store, prefix(), "shop")
    for side in Side:
        tally.add(side, uuid4().hex, 1, {}, replace(WORKER, side=side))
    assert [[one.node for one in reporting(tally, side)] for side in Side] == [["celery@a"], ["celery@a"]]


def test_many_processes_report_at_once(store: RolloutStore) -> None:
    tally = Tally(store, prefix(), "shop")
    names = [f"outcome:done:task{number}" for number in range(50)]

    def report(_: int) -> None:
        process = uuid4().hex
        for number in range(1, 6):
            tally.add(Side.SOURCE, process, number, dict.fromkeys(reversed(names), 1), None)

    together(8, report)
    assert dict.fromkeys(names, 40) == tally.counts(Side.SOURCE)


def test_what_several_processes_saw_counts_once(store: RolloutStore) -> None:
    """Each process sees the same roots, among them some that are its own."""
    tally = Tally(store, prefix(), "shop")

    def report(own: int) -> None:
        process = uuid4().hex
        seen = {f"{place}:charge": ("tried", "charge tried") for place in (*range(20), 100 + own)}
        tally.add(Side.TARGET, process, 1, {"sent": 1}, None, seen)
        # its answer was lost
        tally.add(Side.TARGET, process, 1, {"sent": 1}, None, seen | {"another": ("tried",)})

    together(6, report)
    assert tally.counts(Side.TARGET) == {"sent": 6, "tried": 26, "charge tried": 26}
    # the other side has roots of its own
    tally.add(Side.SOURCE, uuid4().hex, 1, {}, None, {"0:charge": ("tried",)})
    assert tally.counts(Side.SOURCE) == {"tried": 1}


def test_a_task_may_have_any_name(store: RolloutStore) -> None:
    tally, odd = Tally(store, prefix(), "shop"), ["a" * 1000, "a" * 999 + "b", "A", "a", "\N{SNOWMAN}"]
    tally.add(Side.SOURCE, uuid4().hex, 1, dict.fromkeys(odd, 1), None)
    found = tally.counts(Side.SOURCE)
    assert [1] * len(odd) == list(found.values())
    assert {"A", "a", "\N{SNOWMAN}"} < found.keys()


def test_one_of_many_gets_the_lease_and_the_fencing_token_grows(store: RolloutStore) -> None:
    at = prefix()
    leases = [BeatLease(store, at, "shop", f"owner {number}", 60, lambda _: False) for number in range(6)]
    held = together(len(leases), lambda number: leases[number].is_held())
    assert held.count(True) == 1
    (holder,) = [one for one in leases if one.is_held()]
    assert holder._owner == beat_holder(store, at, "shop")
    assert (holder.token, [one.token for one in leases if one is not holder]) == (1, [0] * 5)
    holder.release()
    assert beat_holder(store, at, "shop") is None
    other = next(one for one in leases if one is not holder)
    assert (other.is_held(), other.token) == (True, 2)
    assert not holder.is_held()


def test_a_lease_ends_by_the_servers_clock(store: RolloutStore) -> None:
    first, second = (ControllerStore(store, at, "shop") for at in [prefix()] * 2)
    assert (first.hold("ann", 60), first.hold("ann", 60)) == (1, 1)
    assert first.holder() == "ann"
    key = f"{first._base}:controller"
    answer = store.apply(key, LEASE, acquiring("bob", 60))
    assert (answer.token, answer.owner) == (None, "ann")
    assert 0 < answer.remaining_s <= 60
    first.hold("ann", 0.5)
    wait_until(lambda: second.holder() is None, within_s=30, what="the lease ends")
    assert second.hold("bob", 60) == 2
    # an owner that is known to have ended is passed over
    assert store.apply(key, LEASE, acquiring("eve", 60, "bob")).token == 3
    first.release("ann")
    assert first.holder() == "eve"


def test_a_plan_and_the_counts_of_a_step(store: RolloutStore) -> None:
    kept = ControllerStore(store, prefix(), "shop")
    first = {Side.SOURCE: {"sent": 1}, Side.TARGET: {}}
    assert [first, first] == [kept.first_counts("canary 1", counts) for counts in (first, {Side.SOURCE: {"sent": 9}})]
    kept.forget_steps()
    assert kept.first_counts("canary 1", {}) == {}


def test_no_revoked_id_is_missed(store: RolloutStore) -> None:
    """A reader goes on after the latest instant that it has seen."""
    at, ids = prefix(), [uuid4().hex for _ in range(60)]
    reader = RevokedIds(store, at, "shop")
    seen: set[str] = set(reader.new())

    def revoke(number: int) -> None:
        if number:
            for one in ids[number - 1 :: 3]:
                RevokedIds(store, at, "shop").add([one])
        else:
            wait_until(lambda: seen.update(reader.new()) or len(seen) == len(ids), within_s=60, what="all are seen")  # type: ignore[func-returns-value]

    together(4, revoke)
    assert set(ids) == seen
    assert len(reader.new()) == 1


def test_the_latest_revoked_ids_are_kept(store: RolloutStore) -> None:
    key = prefix()
    for one in ("a", "b", "c", "b", "d"):
        store.step("revoke", [key], [3600, 3, one])
    assert {"c", "b", "d"} == store.scores(key).keys()


def test_a_run_and_its_effect_count_once(store: RolloutStore) -> None:
    at = prefix()
    tasks = SyntheticTasks(store, at, "shop")
    sent = SyntheticTask("id", Side.SOURCE, "orders", 1.0, kills=False, sent_at=1.0)
    tasks.note(sent)
    assert [store.step("begin", [tasks._runs], ["id", run]) for run in ("x", "x", "y")] == [1, 1, 2]
    assert [store.step("effect", [tasks._runs], ["id", run]) for run in ("x", "x", "y")] == [1, 1, 2]
    tasks.stop()
    assert tasks.is_stopped()
    tasks.stop(now=False)
    assert not tasks.is_stopped()
    (found,) = tasks.all()
    assert (found.runs, found.effects) == (2, 2)
    assert abs((found.ended_at or 0) - store.now()) < 60
    together(4, lambda _: tasks.close([found]))
    assert (tasks.all(), store.fields(tasks._runs)) == ([], {})
    assert tasks.closed() == {"source:ended": 1, "source:repeated": 1, "source:doubled": 1}
    tasks.clear()
    assert tasks.closed() == {}


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_step_whose_answer_was_lost_is_made_once(
    kind: str, request: pytest.FixtureRequest, toxiproxy: Server
) -> None:
    """The database commits, and the connection is closed before its answer arrives."""
    server: PrivateDatabase = with_tables(request.getfixturevalue(kind))
    link, at, cut = Proxy.create(toxiproxy.url, f"rollout-{uuid4()}", server.port), prefix(), list[str]()
    with closing(DatabaseRolloutStore(ExplicitSettings(lease_store=server.at(link.port)))) as store:
        records, tally = RolloutRecords(store, at), Tally(store, at, "shop")
        first = records.create("shop", "redis://source/0", "amqp://target//", Change("ann", "why"))
        engine = store.database.engine

        def lose(_: object) -> None:
            if not cut:
                cut.append(link.add_toxic("timeout", "downstream", {"timeout": 300}))

        def heal(*_: object) -> None:
            link.remove_toxic(cut[-1])

        event.listen(engine, "commit", lose)
        event.listen(engine, "invalidate", heal)

        assert records.change(first, Change("bob", "once")).generation == 2
        assert [one.generation for one in records.history("shop")] == [1, 2]
        asked: list[Callable[[], object]] = [
            lambda: tally.add(Side.SOURCE, "a", 1, {"sent": 1}, None),
            lambda: SyntheticTasks(store, at, "shop").begun("id"),
            lambda: Observations(store, at, "shop").add({"at": 1.5}),
        ]
        for number, ask in enumerate(asked):
            cut.clear()
            ask()
            assert cut, number
        assert tally.counts(Side.SOURCE) == {"sent": 1}
        assert Observations(store, at, "shop").series() == [{"at": 1.5}]
        assert store.field(SyntheticTasks(store, at, "shop")._runs, "runs:id") == "1"
    link.delete()


def test_a_process_that_stands_still_within_a_step_stops_no_other_one(database: DatabaseRolloutStore) -> None:
    """The server ends its transaction."""
    if database.database.engine.dialect.name == "sqlite":
        pytest.skip("a file has no server that ends a transaction")
    key = prefix()
    with database.database.engine.connect() as stopped:
        rows = Rows(stopped)
        rows.limit()
        rows.lock(key)
        assert database.apply(key, LEASE, acquiring("ann", 60)).token == 1
        with pytest.raises(RepotError), database.database.errors_named():
            rows.put(key, {"owner": "bob"})
        stopped.invalidate()
    assert database.field(key, "owner") == "ann"


def test_what_is_over_is_deleted_in_small_batches(database: DatabaseRolloutStore) -> None:
    at = prefix()
    tally = Tally(database, at, "shop")
    database.clean()
    tally.add(Side.SOURCE, "one", 1, {"sent": 1}, None)
    database.step("revoke", [at], [3600, 50_000, *(uuid4().hex for _ in range(700))])
    assert (database.clean(), len(database.scores(at))) == (0, 700)
    for table in (tables.fields, tables.scores):
        step = update(table).where(table.c.key.startswith(at), table.c.expires_at.is_not(None))
        database.database.transact(lambda one, step=step: one.execute(step.values(expires_at=now() - 1)))  # type: ignore[misc]
    assert database.scores(at) == {}
    assert [database.clean() for _ in range(3)] == [501, 200, 0]
    # by a step as well
    database._cleans_at = 0.0
    tally.add(Side.SOURCE, "one", 1, {"sent": 1}, None)
    assert tally.counts(Side.SOURCE) == {"sent": 2}


def test_the_history_is_bounded(database: DatabaseRolloutStore) -> None:
    key = prefix()
    for number in range(12):
        database.step("append", [key], [str(number), 10])
    count = select(func.count()).where(tables.lines.c.key == key)
    assert database.database.read(lambda one: one.execute(count).scalar_one()) == 10


def test_without_tables_the_error_says_what_to_do(sqlite: Any) -> None:
    with closing(open_rollout_store(ExplicitSettings(lease_store=sqlite.url))) as store:
        asked: list[Callable[[], Any]] = [
            lambda: store.fields("a"),
            lambda: store.put("a", {"b": "c"}),
            lambda: store.apply("a", LEASE, acquiring("ann", 1)),
        ]
        for one in asked:
            with pytest.raises(StoreMisconfigured, match="tables are missing") as caught:
                one()
            assert "repot store migrate" in caught.value.hint


def test_a_database_that_refuses_or_is_away(postgresql: PrivateDatabase) -> None:
    with_tables(postgresql)
    away = postgresql.at(free_port())
    refused = postgresql.url.replace("shop:", "other:")
    for url, error in ((away, StoreUnreachable), (refused, StoreRefused)):
        with closing(open_rollout_store(ExplicitSettings(lease_store=url))) as store, pytest.raises(error) as caught:
            store.fields("a")
        assert PASSWORD not in f"{caught.value} {caught.value.hint}"
        assert LOOPBACK in str(caught.value)
