"""Commit the outcome of a run together with its effect: one transaction of the database that has the lease store.

The outcome is written last, under the lock of the key's record, and only if no other run has acquired the key. So the
commit decides both: a worker that dies before it leaves neither, one that dies after it leaves both.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, closing, contextmanager
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from repot.errors import ConfigInvalid, LeaseLost, RepotError
from repot.idempotency.records import FinishResult, State
from repot.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.idempotency.guard import Lease
    from repot.idempotency.records import Ending, LeaseStore

log = get_logger(__name__)


class TransactionalStore(Protocol):
    """A lease store that can take part in a transaction of the application's."""

    def finish_on(self, connection: Any, key: str, owner: str, ending: Ending) -> FinishResult:  # noqa: ANN401 - SQLAlchemy's, or of the same form
        """End a lease in a transaction of the caller's."""
        ...

    def connection_over(self, dbapi: Any) -> Any:  # noqa: ANN401 - of a driver
        """Return a connection for `finish_on` that uses one of a driver."""
        ...

    def new_session(self) -> Any:  # noqa: ANN401 - SQLAlchemy's
        """Return a new session of SQLAlchemy's on the store's database."""
        ...


def transactional(store: LeaseStore, what: str = "transaction()") -> TransactionalStore:
    """Return the store, if it can take part in transactions; `what` needs that.

    Raises:
        ConfigInvalid: it is not in a database.
    """
    if not hasattr(store, "finish_on"):
        message = f"{what} needs the lease store in the database of the effect, and it is a Redis"
        raise ConfigInvalid(message, hint="Set WORKER_LEASE_STORE=postgresql+psycopg://...; docs/database.md.")
    found: Any = store
    return found  # type: ignore[no-any-return]


@contextmanager
def committing(
    store: TransactionalStore,
    on: Any,  # noqa: ANN401 - whatever the application has
    lease: Lease | None,
    ending: Callable[[], Ending],
) -> Iterator[Any]:
    """Run a block in a transaction that commits with the outcome of the run; without a lease it only commits.

    Raises:
        LeaseLost: another run has acquired the key; nothing was committed.
    """
    with _opened(store, on) as (given, transaction, connection):
        is_noted = False
        try:
            with transaction:
                yield given
                if lease is not None:
                    _note(store, connection(), lease, ending())
                    is_noted = True
        except Exception as error:
            # what fails before the commit was certainly not committed
            if lease is None or not is_noted or not _has_committed(lease):
                raise
            if not _is_of_a_database(error):
                # what runs after the commit failed, such as Django's on_commit
                lease.committed = True
                raise
            log.warning(
                "the answer to a commit was lost; the transaction was committed: %s",
                error,
                extra={"action": "commit_answer_lost"},
            )
    if lease is not None:
        lease.committed = True


def connection_of(store: TransactionalStore, on: Any) -> Any:  # noqa: ANN401 - whatever the application has
    """Return a connection in the transaction that the caller has begun, and ends.

    Raises:
        ConfigInvalid: it has not begun one, or `on` is nothing that has one.
    """
    if hasattr(on, "sync_session"):
        message = "the outbox was given an AsyncSession, which answers later"
        raise ConfigInvalid(message, hint="await session.run_sync(lambda sync: outbox.send(sync, task, args))")
    for is_one, connect in _JOINED:
        if is_one(on):
            return connect(store, on)
    message = f"the outbox takes the session or connection that your transaction is open on, not {on!r}"
    raise ConfigInvalid(message, hint="docs/outbox.md shows it for SQLAlchemy, Django, FastAPI and drivers.")


def _join_django(store: TransactionalStore, on: Any) -> Any:  # noqa: ANN401
    if not on.in_atomic_block:
        message = "the outbox was given a Django connection outside of transaction.atomic()"
        raise ConfigInvalid(message, hint="The message has to be committed with your rows: put both into one block.")
    on.ensure_connection()
    if _begins_late(on.connection):
        _refuse_savepoints("Leave AUTOCOMMIT of this database as it is: Django's atomic() begins then.")
    return store.connection_over(on.connection)


def _join_driver(store: TransactionalStore, on: Any) -> Any:  # noqa: ANN401
    if iscoroutinefunction(on.commit):
        message = "the outbox was given a driver's connection that answers later"
        raise ConfigInvalid(message, hint="Use SQLAlchemy's AsyncSession: await session.run_sync(...); docs/outbox.md.")
    _refuse_autocommit(on)
    return store.connection_over(on)


def _join_connection(_: TransactionalStore, on: Any) -> Any:  # noqa: ANN401
    _refuse_autocommit(on.connection.driver_connection)
    if on.dialect.name == "sqlite" and on.in_nested_transaction() and not _has_begun(on):
        _refuse_savepoints("Let SQLAlchemy begin it: docs/outbox.md#savepoints-on-sqlite.")
    return on


def _join_session(store: TransactionalStore, on: Any) -> Any:  # noqa: ANN401
    return _join_connection(store, on.connection())


def _note(store: TransactionalStore, connection: Any, lease: Lease, ending: Ending) -> None:  # noqa: ANN401
    if store.finish_on(connection, lease.key, lease.request.owner, ending) is not FinishResult.OK:
        lease.lost = True
        message = (
            f"another run has acquired the key of task {lease.request.task_id}, its outcome is recorded already, "
            "or this database has no such key"
        )
        raise LeaseLost(
            message, hint="Nothing was committed. Is the transaction in the database of WORKER_LEASE_STORE?"
        )


def _is_of_a_database(error: BaseException) -> bool:
    """Return whether an error is a driver's, whose base class PEP 249 names, Django's of that name or SQLAlchemy's."""
    return not {"Error", "SQLAlchemyError"}.isdisjoint(kind.__name__ for kind in type(error).__mro__)


def _has_committed(lease: Lease) -> bool:
    """Return whether a transaction whose commit raised was committed: the answer alone may be lost."""
    try:
        found = lease.store.inspect(lease.key)
    except RepotError:
        # the outcome is recorded as released, which changes nothing if it was committed
        return False
    return found is not None and found.owner == lease.request.owner and found.state is State.DONE


#: What the block gets, its transaction, and how to get a connection in it.
_Opened = tuple[Any, AbstractContextManager[Any], Callable[[], Any]]


@contextmanager
def _opened(store: TransactionalStore, on: Any) -> Iterator[_Opened]:  # noqa: ANN401 - whatever the application has
    for is_one, open_one in _FORMS:
        if is_one(on):
            with open_one(store, on) as found:
                yield found
            return
    message = f"transaction() takes a session, a connection or a function that returns one, not {on!r}"
    raise ConfigInvalid(message, hint="docs/database.md shows it for SQLAlchemy, Django and drivers.")


@contextmanager
def _own(store: TransactionalStore, _: Any) -> Iterator[_Opened]:  # noqa: ANN401
    with _made(store, store.new_session) as found:
        yield found


@contextmanager
def _of_django(store: TransactionalStore, on: Any) -> Iterator[_Opened]:  # noqa: ANN401
    from django.db import transaction

    if not on.settings_dict.get("AUTOCOMMIT", True):
        message = "transaction() was given a Django connection whose atomic() does not commit: AUTOCOMMIT is off"
        raise ConfigInvalid(message, hint="Leave AUTOCOMMIT of this database as it is.")

    def connection() -> Any:  # noqa: ANN401
        if on.needs_rollback:
            # atomic() rolls back without a word, although an error within it was caught
            message = "the transaction will be rolled back: an error within it was caught"
            raise transaction.TransactionManagementError(message) from on.rollback_exc
        return store.connection_over(on.connection)

    yield on, transaction.atomic(using=on.alias, durable=True), connection


@contextmanager
def _of_driver(store: TransactionalStore, on: Any) -> Iterator[_Opened]:  # noqa: ANN401
    _refuse_autocommit(on)
    if _begins_late(on) and not on.in_transaction:
        with closing(on.cursor()) as cursor:
            cursor.execute(_BEGIN)
    yield on, _ended_by(on), lambda: store.connection_over(on)


@contextmanager
def _made(store: TransactionalStore, on: Any) -> Iterator[_Opened]:  # noqa: ANN401
    with closing(on()) as made, _opened(store, made) as found:
        yield found


@contextmanager
def _of_connection(_: TransactionalStore, on: Any) -> Iterator[_Opened]:  # noqa: ANN401
    if not on.in_transaction():
        on.begin()
    with _begun(on):
        yield on, _ended_by(on), lambda: on


@contextmanager
def _of_session(_: TransactionalStore, on: Any) -> Iterator[_Opened]:  # noqa: ANN401
    with _begun(on.connection()):
        yield on, _ended_by(on), on.connection


@contextmanager
def _of_engine(store: TransactionalStore, on: Any) -> Iterator[_Opened]:  # noqa: ANN401
    with on.connect() as connection, _of_connection(store, connection) as found:
        yield found


def _has(*names: str) -> Callable[[object], bool]:
    return lambda on: all(hasattr(on, name) for name in names)


#: How each form is recognised, without an import of its library, and opened; sqlite3's connections are callable.
_FORMS: tuple[tuple[Callable[[Any], bool], Callable[..., AbstractContextManager[_Opened]]], ...] = (
    (lambda on: on is None, _own),
    (_has("ensure_connection", "alias"), _of_django),
    (_has("cursor", "commit"), _of_driver),
    (_has("exec_driver_sql"), _of_connection),
    (callable, _made),
    (_has("get_bind"), _of_session),
    (_has("connect", "dialect"), _of_engine),
)


#: The same for a transaction that is open.
_JOINED: tuple[tuple[Callable[[Any], bool], Callable[[TransactionalStore, Any], Any]], ...] = (
    (_has("ensure_connection", "alias"), _join_django),
    (_has("cursor", "commit"), _join_driver),
    (_has("exec_driver_sql"), _join_connection),
    (_has("get_bind", "connection"), _join_session),
)


@contextmanager
def _ended_by(session: Any) -> Iterator[None]:  # noqa: ANN401
    """Commit at the end of a block, or roll back."""
    try:
        yield
        session.commit()
    except BaseException:
        session.rollback()
        raise


#: Begins a transaction of SQLite that will write: one that reads first could not write after another one has written.
_BEGIN = "BEGIN IMMEDIATE"

#: In the `info` of a connection of SQLAlchemy's whose transaction was begun here.
_BEGUN = "repot_begun"


@contextmanager
def _begun(connection: Any) -> Iterator[None]:  # noqa: ANN401 - SQLAlchemy's
    """Begin a transaction that the driver would not begin before its first write, so that savepoints are within it.

    Raises:
        ConfigInvalid: the connection commits each statement.
    """
    driver = connection.connection.driver_connection
    _refuse_autocommit(driver)
    if not _begins_late(driver) or driver.in_transaction:
        yield
        return
    connection.exec_driver_sql(_BEGIN)
    info = connection.info
    info[_BEGUN] = True
    try:
        yield
    finally:
        info.pop(_BEGUN, None)


def _begins_late(driver: Any) -> bool:  # noqa: ANN401
    """Return whether a driver's connection begins a transaction of SQLite at the first write, and at no savepoint.

    This is `sqlite3.LEGACY_TRANSACTION_CONTROL`: a savepoint before that is a transaction of its own, which is
    committed when the savepoint is released ("Transaction control" in Python's documentation of sqlite3).
    """
    is_legacy = getattr(driver, "autocommit", None) is not False
    return hasattr(driver, "in_transaction") and driver.isolation_level is not None and is_legacy


def _has_begun(connection: Any) -> bool:  # noqa: ANN401 - SQLAlchemy's
    """Return whether a savepoint of SQLite is surely within a transaction."""
    driver = connection.connection.driver_connection
    if connection.info.get(_BEGUN) or getattr(driver, "autocommit", None) is False:
        return True
    # the driver begins nothing, but a listener does: the events that SQLAlchemy documents for this
    return driver.isolation_level is None and bool(connection.dispatch.begin)


def _refuse_savepoints(hint: str) -> NoReturn:
    message = (
        "on this connection a savepoint may begin the transaction, as SQLite's driver does not: its release would "
        "commit the message, whatever becomes of the transaction around it"
    )
    raise ConfigInvalid(message, hint=hint)


def _refuse_autocommit(connection: Any) -> None:  # noqa: ANN401 - of a driver
    """Check that a driver's connection commits at `commit()`, and not with each statement.

    Raises:
        ConfigInvalid: it commits each statement.
    """
    ask = getattr(connection, "get_autocommit", None)
    at_once = ask() if callable(ask) else getattr(connection, "autocommit", False) is True
    # sqlite3's form; an application may begin its transactions itself
    begins = not hasattr(connection, "in_transaction") or connection.isolation_level is not None
    if at_once or not (begins or connection.in_transaction):
        message = "this connection commits each statement by itself"
        raise ConfigInvalid(
            message, hint="Turn autocommit off, or begin a transaction: all of it is committed together."
        )
