"""An effect in the database of the lease store commits with the outcome of its run: both happen, or neither."""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import Celery
from celery.exceptions import Ignore
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, event, func, insert, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from repot.chaos.runner.proxies import Proxy
from repot.config import ExplicitSettings
from repot.errors import ConfigInvalid, LeaseLost, ResultExpired
from repot.idempotency import PARK, Guard, IdempotentTask, Policy, transaction
from repot.idempotency.memory_store import MemoryLeaseStore, guarded_by
from repot.idempotency.records import State
from repot.upstream.app_state import state_of
from repot.waiting import wait_until
from support.databases import connected, django_connection
from support.delivering import deliver
from support.leases import TimedDatabase, lease_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.testbed import Server
    from support.databases import PrivateDatabase


class Ledger:
    """An application with one guarded task, and the table that it writes."""

    def __init__(self, url: str) -> None:
        self.timed = TimedDatabase(url, lease=30)
        self.store = self.timed.store
        self.engine = self.store.database.engine
        self.table = Table(
            f"ledger_{uuid4().hex[:8]}",
            MetaData(),
            Column("id", Integer, primary_key=True),
            Column("what", String(100), nullable=False),
        )
        self.table.metadata.create_all(self.engine)
        self.app = Celery("ledger", set_as_current=False, broker="memory://", backend="cache+memory://")
        self.app.conf.task_always_eager = True
        state: Any = state_of(self.app)
        state.guard = Guard(self.store, self.timed.settings)

    def task(self, run: Callable[..., Any], **options: Any) -> Any:
        """A guarded task of the application."""
        decorate: Any = self.app.task(base=IdempotentTask, bind=True, shared=False, name=f"t{uuid4().hex}", **options)
        return decorate(run)

    def write(self, session: Any, what: str) -> None:
        """Write a line in an open transaction of SQLAlchemy's."""
        session.execute(insert(self.table).values(what=what))

    @property
    def lines(self) -> list[str]:
        """What was committed."""
        with self.engine.connect() as connection:
            return list(connection.scalars(select(self.table.c.what).order_by(self.table.c.id)))

    @property
    def states(self) -> list[State]:
        """Of all records."""
        return [record.state for record in self.store.records()]


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def ledger(request: pytest.FixtureRequest) -> Iterator[Ledger]:
    with _ledger(request.getfixturevalue(request.param).url) as found:
        yield found


@contextmanager
def _ledger(url: str) -> Iterator[Ledger]:
    found = Ledger(url)
    try:
        yield found
    finally:
        found.table.metadata.drop_all(found.engine)
        found.store.close()


@pytest.mark.promise("postgresql")
def test_effect_and_outcome_are_committed_together(ledger: Ledger) -> None:
    def charge(self: Any, order: str) -> str:
        with self.transaction() as session:
            ledger.write(session, order)
            assert ledger.states == [State.RUNNING]
            self.record_result(f"paid {order}")
        assert ledger.states == [State.DONE]
        return f"paid {order}"

    task = ledger.task(charge)
    assert [task.delay("o").get() for _ in range(2)] == ["paid o"] * 2
    assert ledger.lines == ["o"]


def test_a_result_that_is_not_recorded_is_stored_when_the_task_returns(ledger: Ledger) -> None:
    def charge(self: Any, order: str) -> str:
        with self.transaction() as session:
            ledger.write(session, order)
        return f"paid {order}"

    task = ledger.task(charge)
    assert [task.delay("o").get() for _ in range(2)] == ["paid o"] * 2
    assert ledger.lines == ["o"]


def test_what_raises_leaves_neither_and_may_run_again(ledger: Ledger) -> None:
    fails = [True]

    def charge(self: Any, order: str) -> None:
        with self.transaction() as session:
            ledger.write(session, order)
            if fails:
                raise ValueError(fails.pop())

    task = ledger.task(charge)
    with pytest.raises(ValueError, match="True"):
        task.delay("o").get()
    assert (ledger.lines, ledger.states) == ([], [State.RELEASED])
    task.delay("o").get()
    assert (ledger.lines, ledger.states) == (["o"], [State.DONE])


@pytest.mark.promise("postgresql")
def test_a_late_owner_cannot_commit(ledger: Ledger) -> None:
    """Another run has acquired the key meanwhile, while this one stood still."""

    def charge(self: Any, order: str) -> None:
        with self.transaction() as session:
            ledger.write(session, order)
            session.rollback()
            ledger.timed.advance(60)
            ledger.store.acquire(self.fingerprint((order,), {}), lease_request())
            ledger.write(session, order)

    with pytest.raises(LeaseLost, match="another run has acquired"):
        ledger.task(charge).delay("o").get()
    assert (ledger.lines, ledger.states) == ([], [State.RUNNING])


def test_a_late_owner_that_was_not_missed_commits(ledger: Ledger) -> None:
    def charge(self: Any, order: str) -> None:
        ledger.timed.advance(60)
        with self.transaction() as session:
            ledger.write(session, order)

    ledger.task(charge).delay("o").get()
    assert (ledger.lines, ledger.states) == (["o"], [State.DONE])


def test_a_run_that_died_before_its_commit_left_nothing_and_runs_again(ledger: Ledger) -> None:
    """And one that died after it is done; its policy parks nothing that was committed."""
    died = [True, True]

    def charge(self: Any, order: str) -> str:
        if died.pop():
            # as the worker would die: its lease ends, and nothing is recorded
            self.lease.store = _Dead()
            raise KeyboardInterrupt
        with self.transaction() as session:
            ledger.write(session, order)
            died.append(True)
        self.lease.store = _Dead()
        raise KeyboardInterrupt

    task = ledger.task(charge)
    with pytest.raises(KeyboardInterrupt):
        task.delay("o").get()
    died.append(False)
    ledger.timed.advance(60)
    with pytest.raises(KeyboardInterrupt):
        task.delay("o").get()
    ledger.timed.advance(60)
    assert task.delay("o").get() is None
    assert (ledger.lines, ledger.states) == (["o"], [State.DONE])


class _Dead:
    """A lease store that answers nothing."""


def test_what_fails_after_the_commit_is_not_repeated(ledger: Ledger) -> None:
    def charge(self: Any, order: str) -> None:
        with self.transaction() as session:
            ledger.write(session, order)
        raise ValueError(order)

    task = ledger.task(charge)
    with pytest.raises(ValueError, match="o"):
        task.delay("o").get()
    assert task.delay("o").get() is None
    assert (ledger.lines, ledger.states) == (["o"], [State.DONE])


def test_who_needs_a_result_that_was_not_stored_gets_no_other_one(ledger: Ledger) -> None:
    def charge(self: Any, order: str) -> str:
        with self.transaction() as session:
            ledger.write(session, order)
        raise ValueError(order)

    def tell(_self: Any, text: str) -> str:
        return text

    task, other = ledger.task(charge), ledger.task(tell)
    with pytest.raises(ValueError, match="o"):
        task.delay("o").get()
    with pytest.raises(ResultExpired, match="committed"):
        task.apply_async(("o",), link=other.s()).get()
    assert ledger.lines == ["o"]


def test_a_run_has_one_transaction(ledger: Ledger) -> None:
    def charge(self: Any, order: str) -> None:
        for _ in range(2):
            with self.transaction() as session:
                ledger.write(session, order)

    with pytest.raises(ConfigInvalid, match="second transaction"):
        ledger.task(charge).delay("o").get()
    assert ledger.lines == ["o"]


def test_without_a_lease_it_only_commits(ledger: Ledger) -> None:
    def charge(self: Any, order: str) -> None:
        with self.transaction() as session:
            ledger.write(session, order)

    ledger.task(charge)("o")
    assert (ledger.lines, ledger.states) == (["o"], [])


@pytest.mark.promise("postgresql")
@pytest.mark.parametrize("form", ["Session", "sessionmaker", "scoped_session", "Connection", "Engine"])
def test_forms_of_sqlalchemy(ledger: Ledger, form: str) -> None:
    with ExitStack() as stack:
        engine = create_engine(ledger.store.database.url.reveal())
        stack.callback(engine.dispose)
        forms: dict[str, Callable[[], Any]] = {
            "Session": lambda: stack.enter_context(Session(engine)),
            "sessionmaker": lambda: sessionmaker(engine),
            "scoped_session": lambda: scoped_session(sessionmaker(engine)),
            "Connection": lambda: stack.enter_context(engine.connect()),
            "Engine": lambda: engine,
        }
        given = forms[form]()
        _is_one_effect(ledger, given, ledger.write)
    # nothing holds a row


def _is_one_effect(ledger: Ledger, given: Any, write: Callable[[Any, str], None]) -> None:
    """Check that an effect is rolled back with an error, and committed once without."""
    fails = [True]

    def charge(self: Any, order: str) -> str:
        with self.transaction(given) as session:
            write(session, order)
            if fails:
                raise ValueError(fails.pop())
            self.record_result({"order": order})
        return order

    task = ledger.task(charge)
    with pytest.raises(ValueError, match="True"):
        task.delay("o").get()
    assert (ledger.lines, ledger.states) == ([], [State.RELEASED])
    assert task.delay("o").get() == "o"
    assert (ledger.lines, ledger.states) == (["o"], [State.DONE])
    assert task.delay("o").get() == {"order": "o"}


@pytest.mark.promise("postgresql")
def test_a_connection_of_a_driver(ledger: Ledger) -> None:
    with closing(connected(ledger.store.database.url.reveal())) as connection:

        def write(given: Any, what: str) -> None:
            assert given is connection
            cursor = given.cursor()
            cursor.execute(f"INSERT INTO {ledger.table.name} (what) VALUES ('{what}')")  # noqa: S608 - the test's own
            cursor.close()

        _is_one_effect(ledger, connection, write)


def test_a_connection_whose_rows_are_mappings(postgresql: PrivateDatabase) -> None:
    from psycopg.rows import dict_row

    with (
        _ledger(postgresql.url) as ledger,
        closing(connected(ledger.store.database.url.reveal(), row_factory=dict_row)) as connection,
    ):

        def write(given: Any, what: str) -> None:
            given.execute(f"INSERT INTO {ledger.table.name} (what) VALUES (%s)", (what,))  # noqa: S608

        _is_one_effect(ledger, connection, write)


def test_a_connection_that_commits_by_itself_is_refused(ledger: Ledger) -> None:
    def charge(self: Any, order: str) -> None:
        del order
        with self.transaction(connection):
            pytest.fail("the block must not begin")

    with (
        closing(connected(ledger.store.database.url.reveal(), autocommit=True)) as connection,
        pytest.raises(ConfigInvalid, match="commits each statement"),
    ):
        ledger.task(charge).delay("o").get()


def test_an_engine_that_commits_by_itself_is_refused(ledger: Ledger) -> None:
    def charge(self: Any, order: str) -> None:
        del order
        with self.transaction(engine):
            pytest.fail("the block must not begin")

    engine = create_engine(ledger.store.database.url.reveal(), isolation_level="AUTOCOMMIT")
    with pytest.raises(ConfigInvalid, match="commits each statement"):
        ledger.task(charge).delay("o").get()
    engine.dispose()


def test_another_database_is_refused(postgresql: PrivateDatabase, tmp_path: Any) -> None:
    with _ledger(postgresql.url) as ledger, _ledger(f"sqlite:///{tmp_path}/other.db") as other:

        def charge(self: Any, order: str) -> None:
            with self.transaction(other.engine) as connection:
                other.write(connection, order)

        with pytest.raises(LeaseLost, match="no such key"):
            ledger.task(charge).delay("o").get()
        assert other.lines == []


def test_a_store_in_redis_takes_part_in_no_transaction(redis: Server) -> None:
    from repot.idempotency.stores import open_store

    settings = ExplicitSettings(lease_store=redis.url, lease_prefix=str(uuid4()))
    app = Celery("ledger", set_as_current=False, broker="memory://", backend="cache+memory://")
    app.conf.task_always_eager = True
    state_of(app).guard = Guard(open_store(settings), settings)

    @app.task(base=IdempotentTask, bind=True, shared=False)
    def charge(self: Any) -> None:
        with self.transaction():
            pytest.fail("the block must not begin")

    with pytest.raises(ConfigInvalid, match="it is a Redis"):
        charge.delay().get()


def test_the_double_takes_part(tmp_path: Any) -> None:
    """For tests of applications."""
    with _ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:

        def charge(self: Any, order: str) -> str:
            with self.transaction(ledger.engine) as connection:
                ledger.write(connection, order)
                self.record_result("paid")
            return "paid"

        task = ledger.task(charge)
        with guarded_by(ledger.app, MemoryLeaseStore()):
            assert [task.delay("o").get() for _ in range(2)] == ["paid", "paid"]
        assert ledger.lines == ["o"]


@pytest.mark.parametrize("also_the_store", [False, True])
def test_a_commit_whose_answer_is_lost_happened_once(
    postgresql: PrivateDatabase, toxiproxy: Server, *, also_the_store: bool
) -> None:
    """The server commits, and the worker does not hear of it; perhaps it cannot ask either."""
    link = Proxy.create(toxiproxy.url, f"link-{uuid4()}", postgresql.port)
    with ExitStack() as stack:
        stack.callback(link.delete)
        behind = postgresql.at(link.port)
        ledger = stack.enter_context(_ledger(behind if also_the_store else postgresql.url))
        engine = create_engine(behind)
        stack.callback(engine.dispose)
        cut: list[str] = []

        @event.listens_for(engine, "commit")
        def cut_answers(_: object) -> None:
            if not cut:
                cut.append(link.add_toxic("timeout", "downstream", {"timeout": 3000}))

        def charge(self: Any, order: str) -> str:
            with self.transaction(engine) as connection:
                ledger.write(connection, order)
                self.record_result("paid")
            return "paid"

        task = ledger.task(charge)
        if also_the_store:
            with pytest.raises(Exception, match="connection"):
                task.delay("o").get()
        else:
            assert task.delay("o").get() == "paid"
        assert cut
        link.remove_toxic(cut[0])
        wait_until(lambda: ledger.lines == ["o"], within_s=30, what="the effect is there")
        assert task.delay("o").get() == "paid"
        assert ledger.lines == ["o"]


@pytest.mark.promise("postgresql")
@pytest.mark.parametrize("name", ["sqlite", "postgresql"])
def test_a_connection_of_djangos(request: pytest.FixtureRequest, name: str) -> None:
    with _ledger(request.getfixturevalue(name).url) as ledger:

        def write(given: Any, what: str) -> None:
            with given.cursor() as cursor:
                cursor.execute(f"INSERT INTO {ledger.table.name} (what) VALUES (%s)", [what])  # noqa: S608

        with django_connection(ledger.store.database.url.reveal()) as connection:
            _is_one_effect(ledger, connection, write)


@pytest.mark.parametrize("name", ["sqlite", "postgresql"])
def test_a_connection_of_djangos_that_does_not_commit_is_refused(request: pytest.FixtureRequest, name: str) -> None:
    """With AUTOCOMMIT off its atomic() leaves the commit to the application, and the outcome would not be there."""

    def charge(self: Any, order: str) -> None:
        del order
        with self.transaction(connection):
            pytest.fail("the block must not begin")

    with (
        _ledger(request.getfixturevalue(name).url) as ledger,
        django_connection(ledger.store.database.url.reveal(), AUTOCOMMIT=False) as connection,
        pytest.raises(ConfigInvalid, match="AUTOCOMMIT is off"),
    ):
        ledger.task(charge).delay("o").get()


@pytest.mark.promise("postgresql")
def test_two_runs_of_one_key_commit_once(ledger: Ledger) -> None:
    """Whatever their policy says of unknown outcomes: the later one finds the outcome of the first."""

    def charge(self: Any, order: str) -> int:
        with self.transaction() as session:
            ledger.write(session, order)
            count = session.scalar(select(func.count()).select_from(ledger.table))
            self.record_result(count)
        return int(count)

    task = ledger.task(charge, idempotency=Policy(key=("order",), on_unknown=PARK))
    assert [task.delay("o").get() for _ in range(3)] == [1, 1, 1]
    assert ledger.lines == ["o"]


def test_a_block_that_is_tried_again_after_a_lost_answer_commits_once(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The body tries it again, and the store cannot say meanwhile what became of the first commit."""
    commits: list[str] = []

    def commit(session: Session) -> None:
        Session.commit(session)
        commits.append("lost")
        if len(commits) == 1:
            message = "the answer is lost"
            raise OperationalError(message, {}, ConnectionError())

    monkeypatch.setattr(transaction, "_has_committed", lambda _: False)

    def charge(self: Any, order: str) -> str:
        for _ in range(3):
            session: Any = ledger.store.new_session()
            session.commit = partial(commit, session)
            with closing(session), suppress(OperationalError), self.transaction(session):
                ledger.write(session, order)
        return "paid"

    with pytest.raises(LeaseLost):
        ledger.task(charge).delay("o").get()
    assert ledger.lines == ["o"]


def test_a_run_that_replaces_itself_after_its_commit_lets_the_replacement_run(ledger: Ledger) -> None:
    def charge(self: Any, order: str, step: int = 1) -> str:
        with self.transaction() as session:
            ledger.write(session, f"{order}{step}")
            self.record_result(f"step {step}")
        if step == 1:
            raise Ignore
        return f"step {step}"

    task = ledger.task(charge, idempotency=Policy(key=("order",)))
    for step in (1, 2, 2):
        deliver(task, "o", step, message="one", replaced_task_nesting=step - 1)
    assert ledger.lines == ["o1", "o2"]


def test_a_result_of_a_block_that_was_rolled_back_is_not_that_of_the_next(ledger: Ledger) -> None:
    def charge(self: Any, order: str) -> str:
        with suppress(ZeroDivisionError), self.transaction() as session:
            ledger.write(session, order)
            self.record_result("paid")
            raise ZeroDivisionError
        with self.transaction() as session:
            ledger.write(session, "refused")
        return "refused"

    task = ledger.task(charge)
    assert [task.delay("o").get() for _ in range(2)] == ["refused"] * 2
    assert ledger.lines == ["refused"]


@pytest.mark.parametrize("name", ["sqlite", "postgresql"])
def test_what_djangos_atomic_rolls_back_without_a_word_is_an_error(request: pytest.FixtureRequest, name: str) -> None:
    """An error within it was caught; the rows are not there, so the effect has not happened."""

    def charge(self: Any, order: str) -> str:
        with self.transaction(connection), connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {ledger.table.name} (what) VALUES (%s)", [order])  # noqa: S608
            connection.set_rollback(True)
        return "paid"

    with (
        _ledger(request.getfixturevalue(name).url) as ledger,
        django_connection(ledger.store.database.url.reveal()) as connection,
    ):
        with pytest.raises(Exception, match="will be rolled back"):
            ledger.task(charge).delay("o").get()
        assert (ledger.lines, ledger.states) == ([], [State.RELEASED])


@pytest.mark.parametrize("name", ["sqlite", "postgresql"])
def test_what_fails_after_djangos_commit_fails_the_task_and_the_effect_stays(
    request: pytest.FixtureRequest, name: str
) -> None:
    """As a task that `on_commit` could not send: it would be lost in silence."""

    def charge(self: Any, order: str) -> str:
        with self.transaction(connection), connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {ledger.table.name} (what) VALUES (%s)", [order])  # noqa: S608
            connection.on_commit(unsent)
        return "paid"

    def unsent() -> None:
        message = "the broker is away"
        raise ConnectionError(message)

    with (
        _ledger(request.getfixturevalue(name).url) as ledger,
        django_connection(ledger.store.database.url.reveal()) as connection,
    ):
        task = ledger.task(charge)
        with pytest.raises(ConnectionError, match="the broker is away"):
            task.delay("o").get()
        assert task.delay("o").get() is None
        assert (ledger.lines, ledger.states) == (["o"], [State.DONE])
