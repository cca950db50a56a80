"""Ask a database whether it keeps what is committed, takes writes, and has repot's tables. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import text

from repot.database.migrate import Migrations
from repot.errors import StoreMisconfigured

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from repot.database.connection import Database


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """What a database says of itself.

    Attributes:
        read_only: why it takes no writes; empty if it does.
        forgets: why it may lose what was committed.
        tables: what is wrong with the tables; empty if they are those of this repot.
    """

    read_only: str = ""
    forgets: tuple[str, ...] = ()
    tables: str = ""


def inspect_database(database: Database) -> DatabaseFacts:
    """Return the facts of a database.

    Raises:
        StoreUnreachable, StoreRefused, StoreMisconfigured: as every request to the database.
    """
    dialect = database.engine.dialect.name
    if dialect == "sqlite":
        return _of_sqlite(database)
    read_only, forgets = _QUESTIONS[dialect]
    return DatabaseFacts(
        database.read(lambda connection: next(read_only(connection), "")),
        database.read(lambda connection: tuple(forgets(connection))),
        _wrong_tables(database),
    )


def _of_sqlite(database: Database) -> DatabaseFacts:
    file = database.engine.url.database
    if file in (None, "", ":memory:"):
        return DatabaseFacts(forgets=("it is in the memory of each process, which has records of its own",))
    if not file.startswith("file:") and not Path(file).exists():
        # connecting would make it
        return DatabaseFacts(tables="the file does not exist")
    return DatabaseFacts(tables=_wrong_tables(database))


def _wrong_tables(database: Database) -> str:
    migrations = Migrations(database)
    try:
        pending = migrations.pending()
    except StoreMisconfigured as error:
        return error.message
    if not pending:
        return ""
    current = migrations.current()
    if not current:
        return "there are no tables"
    return f"they are at version {current}, and this repot needs {pending[-1].version}"


def _read_only_postgresql(connection: Connection) -> Iterator[str]:
    if _value(connection, "SELECT pg_is_in_recovery()"):
        yield "it is a replica: pg_is_in_recovery() is true"
    if _value(connection, "SHOW default_transaction_read_only") == "on":
        yield "default_transaction_read_only is on"


def _read_only_mysql(connection: Connection) -> Iterator[str]:
    for name in ("read_only", "innodb_read_only"):
        # MariaDB 12 says ON, OFF
        if str(_value(connection, f"SELECT @@GLOBAL.{name}")).upper() not in ("0", "OFF"):
            yield f"{name} is on"


def _forgets_postgresql(connection: Connection) -> Iterator[str]:
    # of this user and database: both may have a value of their own
    for name, loss in (
        ("fsync", "a crash of the machine may ruin the database"),
        ("synchronous_commit", "a crash takes back the last commits"),
    ):
        if _value(connection, f"SHOW {name}") == "off":
            yield f"{name} is off: {loss}"
    unlogged = (
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relpersistence = 'u' AND starts_with(relname, 'repot_')"
        " AND pg_table_is_visible(oid) ORDER BY relname"
    )
    for name in connection.scalars(text(unlogged)):
        yield f"{name} is UNLOGGED: a crash empties it"


def _forgets_mysql(connection: Connection) -> Iterator[str]:
    flush = _value(connection, "SELECT @@GLOBAL.innodb_flush_log_at_trx_commit")
    if flush != 1:
        yield f"innodb_flush_log_at_trx_commit is {flush}: a crash takes back the last commits"
    others = (
        "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = DATABASE()"
        " AND LEFT(table_name, 6) = 'repot_' AND engine <> 'InnoDB' ORDER BY table_name"
    )
    for name, engine in connection.execute(text(others)):
        yield f"{name} is a table of {engine}, which has no transactions"


def _value(connection: Connection, query: str) -> object:
    return connection.scalar(text(query))


#: How each asks whether it is read-only, and why it may forget.
_QUESTIONS = {
    "postgresql": (_read_only_postgresql, _forgets_postgresql),
    "mysql": (_read_only_mysql, _forgets_mysql),
    "mariadb": (_read_only_mysql, _forgets_mysql),
}
