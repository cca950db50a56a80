"""Connect to the database of the lease store: short transactions that are repeated where that is safe."""

from __future__ import annotations

import os
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import finalize

from sqlalchemy import Engine, create_engine, event, exc, make_url
from sqlalchemy.pool import StaticPool

from repot.database.failures import Meaning, failure, is_read_only, meaning_of
from repot.errors import ConfigInvalid, StoreMisconfigured
from repot.logs import get_logger
from repot.upstream.native_threads import sharing_key
from repot.waiting import spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from sqlalchemy import Connection

    from repot.config import ServiceUrl, WorkerSettings

log = get_logger(__name__)

T = TypeVar("T")

#: Attempts after the first of a transaction that another one was in the way of, or whose connection was lost.
_REPEATS, _RECONNECTS = 10, 2
_PAUSE_S = 0.05

#: The option of a connection that writes nothing.
_READS = "repot_reads"

#: Connections that stay open; more are made for a moment.
_POOL = 2
_OVERFLOW = 30


class Database:
    """The database of the settings; threads may share it, and a forked child connects again.

    Where threads are greenlets, each thread of the operating system has an engine of its own.
    """

    def __init__(self, settings: WorkerSettings, *, is_limited: bool = True) -> None:
        """Use the store of the settings; connects on first use.

        A statement without an answer ends its connection after `WORKER_SOCKET_TIMEOUT`, at most a third of
        `WORKER_LEASE`; with `is_limited=False` it does not.

        Raises:
            ConfigInvalid: it is not a database.
        """
        url = settings.database_url
        if url is None:
            message = "WORKER_LEASE_STORE is not a database"
            raise ConfigInvalid(message, hint="Set WORKER_LEASE_STORE=postgresql+psycopg://host/database.")
        self._settings, self.url, self._is_limited = settings, url, is_limited
        self._engines: dict[int, Engine] = {}
        self._pid = os.getpid()
        self._unlimited = Database(settings, is_limited=False) if is_limited else None

    @property
    def unlimited(self) -> Database:
        """The same database for statements that take as long as they take: a migration's, and the application's."""
        # SQLite limits how long others are waited for alone, and a database in memory has one connection
        return self if self._unlimited is None or self.engine.dialect.name == "sqlite" else self._unlimited

    @property
    def engine(self) -> Engine:
        """SQLAlchemy's engine.

        Raises:
            ConfigInvalid: the driver is not installed, or the address is not one of SQLAlchemy's.
        """
        if self._engines and self._pid != os.getpid():
            # the parent's connections are not closed, for it uses them
            for engine in self._engines.values():
                engine.dispose(close=False)
            self._engines.clear()
        key = sharing_key()
        if key not in self._engines:
            engine = _make_engine(self._settings, self.url, is_limited=self._is_limited)
            self._engines[key], self._pid = engine, os.getpid()
            # a store that is dropped and not closed leaves no connection to the garbage collector
            finalize(self, _dispose, engine, self._pid).atexit = False
        return self._engines[key]

    def close(self) -> None:
        """Close the connections; one that is in use when its transaction ends.

        Where threads are greenlets, those of this thread alone.
        """
        engine = self._engines.pop(sharing_key(), None)
        if engine is not None:
            _dispose(engine, self._pid)
        if self._unlimited is not None:
            self._unlimited.close()

    def read(self, act: Callable[[Connection], T]) -> T:
        """Run one transaction that writes nothing, as `transact`; it waits for no other one."""
        return self._repeated(act, self._reading)

    def transact(self, act: Callable[[Connection], T]) -> T:
        """Run one transaction; `act` may run again, so it has to be safe to repeat after a lost answer.

        Raises:
            StoreUnreachable: the database is unavailable; the transaction may have been committed.
            StoreMisconfigured: no retry helps.
        """
        return self._repeated(act, self.engine.begin)

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self.engine.connect() as connection:
            yield connection.execution_options(**{_READS: True})

    def _repeated(self, act: Callable[[Connection], T], begin: Callable[[], AbstractContextManager[Connection]]) -> T:
        repeats = reconnects = 0
        while True:
            try:
                with begin() as connection:
                    return act(connection)
            except (exc.SQLAlchemyError, OSError) as error:
                meaning = meaning_of(error).meaning
                is_lost = isinstance(error, exc.DBAPIError) and error.connection_invalidated
                if meaning is Meaning.REPEAT and repeats < _REPEATS:
                    repeats += 1
                elif is_lost and reconnects < _RECONNECTS:
                    reconnects += 1
                else:
                    if is_read_only(error):
                        _close_connections(self.engine)
                    raise failure(self.url, error) from error
                Event().wait(spread(0, _PAUSE_S * (repeats + reconnects)))

    @contextmanager
    def errors_named(self) -> Iterator[None]:
        """Raise what the database refuses as errors of repot's."""
        try:
            yield
        except (exc.SQLAlchemyError, OSError) as error:
            raise failure(self.url, error) from error


def _dispose(engine: Engine, pid: int) -> None:
    """Close the connections of an engine, in the process that made it."""
    if pid == os.getpid():
        _close_connections(engine)


def _close_connections(engine: Engine) -> None:
    """Close what is free now, and each connection that is in use when it is given back."""
    pool = engine.pool
    engine.dispose()
    # SQLAlchemy leaves those in use to the garbage collector
    event.listen(pool, "checkin", lambda _, entry: entry.invalidate())
    # given back since
    pool.dispose()


def _make_engine(settings: WorkerSettings, url: ServiceUrl, *, is_limited: bool) -> Engine:
    try:
        address = make_url(url.servers[0])
        dialect = address.get_dialect()
        options = _OPTIONS[dialect.name](settings, address.get_driver_name())
        if dialect.name == "sqlite" and address.database in (None, "", ":memory:"):
            options["poolclass"] = StaticPool
        engine = create_engine(address, hide_parameters=True, **options)
    except ModuleNotFoundError as error:
        message = f"the driver of WORKER_LEASE_STORE={url} is not installed: {error}"
        raise ConfigInvalid(
            message, hint="Install it, as in `pip install 'psycopg[binary]'` or `pip install pymysql`."
        ) from error
    except exc.ArgumentError as error:
        message = f"WORKER_LEASE_STORE={url} is not an address of SQLAlchemy's: {error}"
        raise ConfigInvalid(message, hint="Write postgresql+psycopg://host/database.") from error
    if dialect.name == "sqlite":
        event.listen(engine, "connect", _leave_transactions_alone)
        event.listen(engine, "begin", _begin)
    elif is_limited:
        _limit(engine, _timeout_s(settings))
    return engine


def _limit(engine: Engine, limit_s: float) -> None:
    """Let connections end that wait for an answer for longer; psycopg2 has no means for it."""

    def with_options(_dialect: object, _record: object, _arguments: object, options: dict[str, Any]) -> None:
        # both drivers take whole seconds
        options["read_timeout"] = options["write_timeout"] = max(1, round(limit_s))

    def with_psycopg(_dialect: object, _record: object, arguments: Any, options: dict[str, Any]) -> Any:  # noqa: ANN401
        from repot.upstream.limited_connection import LimitedConnection

        connection = LimitedConnection.connect(*arguments, **options)
        connection.limit_s = limit_s
        return connection

    if limited := {"psycopg": with_psycopg, "pymysql": with_options, "mysqldb": with_options}.get(engine.driver):
        event.listen(engine, "do_connect", limited)


def _timeout_s(settings: WorkerSettings) -> float:
    # a renewal that takes longer than the interval between two comes too late
    return min(settings.socket_timeout, settings.lease / 3)


def _of_postgresql(settings: WorkerSettings, driver: str) -> dict[str, Any]:
    if driver not in ("psycopg", "psycopg2"):
        _refuse_driver(driver, "postgresql+psycopg")
    timeout_s = _timeout_s(settings)
    arguments = {
        # libpq takes whole seconds, and one second for two
        "connect_timeout": max(2, round(min(settings.socket_connect_timeout, timeout_s))),
        "tcp_user_timeout": round(timeout_s * 1000),
        "keepalives_idle": max(1, round(timeout_s)),
        "application_name": f"{settings.client_name}-leases",
    }
    return {"connect_args": arguments, **_POOLED}


def _of_mysql(settings: WorkerSettings, driver: str) -> dict[str, Any]:
    if driver not in ("pymysql", "mysqldb"):
        _refuse_driver(driver, "mysql+pymysql")
    connect_s = min(settings.socket_connect_timeout, _timeout_s(settings))
    return {"connect_args": {"connect_timeout": max(1, round(connect_s))}, **_POOLED}


def _of_sqlite(settings: WorkerSettings, driver: str) -> dict[str, Any]:
    if driver != "pysqlite":
        _refuse_driver(driver, "sqlite")
    return {"connect_args": {"timeout": _timeout_s(settings), "check_same_thread": False}}


def _refuse_driver(driver: str, instead: str) -> None:
    message = f"WORKER_LEASE_STORE names the driver {driver!r}, which repot does not use"
    raise StoreMisconfigured(message, hint=f"Write {instead}://...")


#: READ COMMITTED: a locked row is read as it is now, and not as it was when the transaction began.
_POOLED = {"isolation_level": "READ COMMITTED", "pool_size": _POOL, "max_overflow": _OVERFLOW, "pool_timeout": 10}

_OPTIONS = {"postgresql": _of_postgresql, "mysql": _of_mysql, "mariadb": _of_mysql, "sqlite": _of_sqlite}


def _leave_transactions_alone(connection: Any, _record: object) -> None:  # noqa: ANN401 - of sqlite3
    # the module would begin a transaction at the first write, after the read that decides
    connection.isolation_level = None


def _begin(connection: Connection) -> None:
    # a transaction that reads first could not write after another one has written
    connection.exec_driver_sql("BEGIN" if connection.get_execution_options().get(_READS) else "BEGIN IMMEDIATE")
