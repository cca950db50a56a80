"""The database of the lease store: its tables, what goes wrong with it, and many that want one key at once."""

from __future__ import annotations

import json
import logging
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from click.testing import CliRunner, Result
from sqlalchemy import create_engine, inspect, text

from repot.cli.main import main
from repot.config import ExplicitSettings, inherited_environment
from repot.database import job_tables, outbox_tables, rollout_tables  # noqa: F401 - they add their tables to `metadata`
from repot.database.connection import Database
from repot.database.migrate import Migrations
from repot.database.schema import VERSION_TABLE, metadata
from repot.errors import RepotError, StoreMisconfigured, StoreRefused, StoreUnreachable
from repot.idempotency.database_store import DatabaseLeaseStore
from repot.idempotency.fingerprint import Fingerprint
from repot.idempotency.records import Acquired, Ending, FinishResult, Running, RunOutcome
from repot.testbed import free_port
from support import forked
from support.databases import PASSWORD, FileDatabase, PrivateDatabase, private_mariadb
from support.leases import TimedDatabase, lease_request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEY = Fingerprint("0" * 64)

#: The versions of the tables, in order.
VERSIONS = ["0001", "0002", "0003", "0004"]


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def empty(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a database without tables."""
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite").url
        return
    server: PrivateDatabase = request.getfixturevalue(request.param)
    with _database_of(server) as url:
        yield url


class _database_of:  # noqa: N801 - used as a function
    """Make a database on a server for the duration of a `with`, and return its address."""

    def __init__(self, server: PrivateDatabase) -> None:
        self._name = f"d{uuid4().hex[:12]}"
        self._engine = create_engine(server.url, isolation_level="AUTOCOMMIT")

    def __enter__(self) -> str:
        self._run(f"CREATE DATABASE {self._name}")
        return self._engine.url.set(database=self._name).render_as_string(hide_password=False)

    def __exit__(self, *_: object) -> None:
        force = " WITH (FORCE)" if self._engine.dialect.name == "postgresql" else ""
        self._run(f"DROP DATABASE {self._name}{force}")
        self._engine.dispose()

    def _run(self, statement: str) -> None:
        with self._engine.connect() as connection:
            connection.execute(text(statement))


def _store(url: str, **changes: Any) -> DatabaseLeaseStore:
    return DatabaseLeaseStore(ExplicitSettings(lease_store=url, **changes))


def _run_sql(url: str, *statements: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def _repot(url: str, *words: str) -> Result:
    return CliRunner().invoke(main, words, env={"WORKER_LEASE_STORE": url})


def test_the_tables_are_made_once_and_are_those_of_the_schema(empty: str) -> None:
    dry = _repot(empty, "store", "migrate")
    assert dry.exit_code == 0, dry.output
    assert "CREATE TABLE IF NOT EXISTS repot_idempotency" in dry.stdout
    assert "nothing was changed; add --execute" in dry.stderr
    assert PASSWORD not in dry.output
    with closing(_store(empty)) as store:
        engine = store.database.engine
        assert inspect(engine).get_table_names() == []
        for expected in (
            "version 0001: The table of leases and idempotency records.",
            f"up to date, at version {VERSIONS[-1]}",
        ):
            made = _repot(empty, "store", "migrate", "--execute")
            assert made.exit_code == 0, made.output
            assert expected in made.stderr
        with engine.connect() as connection:
            options = {"version_table": "repot_schema", "compare_type": True}
            assert compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []


def test_json_of_a_migration(empty: str) -> None:
    (pending, done, nothing) = (
        json.loads(_repot(empty, "store", "migrate", "--json", *words).stdout) for words in ([], ["--execute"], [])
    )
    assert (pending["current"], [one["version"] for one in pending["pending"]], pending["done"]) == ("", VERSIONS, [])
    assert (VERSIONS[-1], [], VERSIONS) == (done["current"], done["pending"], done["done"])
    assert (VERSIONS[-1], [], [], []) == (nothing["current"], nothing["pending"], nothing["done"], nothing["sql"])


@pytest.mark.promise("postgresql")
def test_a_migration_that_was_killed_between_two_statements_goes_on(empty: str) -> None:
    with closing(_store(empty)) as store:
        migrations = Migrations(store.database)
        _run_sql(empty, *migrations.statements()[:2])
        assert [one.version for one in migrations.apply()] == VERSIONS
        assert migrations.pending() == []
        names = [one["name"] for one in inspect(store.database.engine).get_indexes("repot_idempotency")]
        assert "repot_idempotency_deleted_at" in names


@pytest.mark.promise("postgresql")
def test_several_migrate_at_once(empty: str, tmp_path: Path) -> None:
    """As the first containers of a deployment do."""
    command = [sys.executable, "-m", "repot", "store", "migrate", "--execute"]
    environment = inherited_environment(without=()) | {"WORKER_LEASE_STORE": empty}
    started = [
        forked.start(command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True) for _ in range(4)
    ]
    said = [one.communicate(timeout=60)[1] for one in started]
    assert [one.returncode for one in started] == [0] * 4, said
    assert all(f"version {VERSIONS[-1]}" in errors for errors in said), said
    assert "up to date" in _repot(empty, "store", "migrate").stderr


@pytest.mark.promise("postgresql")
def test_tables_of_a_newer_repot_are_left_alone(empty: str) -> None:
    _repot(empty, "store", "migrate", "--execute")
    _run_sql(empty, "UPDATE repot_schema SET version_num = '9999'")
    found = _repot(empty, "store", "migrate", "--execute")
    assert found.exit_code == StoreMisconfigured.exit_code
    assert "at version 9999, which this repot does not know" in found.stderr
    assert "Upgrade repot" in found.stderr


def test_migrations_of_ones_own_project(sqlite: FileDatabase) -> None:
    """Django's and Alembic's: the module that is printed makes the tables."""
    made = _repot(sqlite.url, "store", "migrate", "--as", "alembic").stdout
    engine = create_engine(sqlite.url)
    with engine.begin() as connection, Operations.context(MigrationContext.configure(connection)):
        module: dict[str, Any] = {}
        exec(made, module)  # noqa: S102 - what repot printed
        module["upgrade"]()
    engine.dispose()
    assert "up to date" in _repot(sqlite.url, "store", "migrate").stderr
    other = FileDatabase(sqlite.path.with_name("other.db"))
    module = {}
    exec(_repot(other.url, "store", "migrate", "--as", "django").stdout, module)  # noqa: S102
    (operation,) = module["Migration"].operations
    for statement in operation.sql:
        _run_sql(other.url, statement)
    assert "up to date" in _repot(other.url, "store", "migrate").stderr


def test_a_migration_takes_as_long_as_it_takes(mariadb: PrivateDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits here for another one; its statements may need as long on large tables."""
    monkeypatch.setattr("repot.database.migrate._PAUSES_S", ())
    with _database_of(mariadb) as url, closing(_store(url, lease=3)) as store:
        engine = create_engine(url)
        with engine.connect() as other, ThreadPoolExecutor() as pool:
            other.execute(text(f"SELECT GET_LOCK('{VERSION_TABLE}', 0)"))
            done = pool.submit(Migrations(store.database).apply)
            with pytest.raises(TimeoutError):
                done.result(timeout=2.5)
            other.execute(text(f"SELECT RELEASE_LOCK('{VERSION_TABLE}')"))
            assert [one.version for one in done.result()] == VERSIONS
        engine.dispose()


def test_a_redis_has_no_tables(redis: Any) -> None:
    found = _repot(redis.url, "store", "migrate")
    assert found.exit_code == 2
    assert "is not a database" in found.stderr


@pytest.mark.promise("postgresql")
def test_tables_that_are_missing_are_named(empty: str) -> None:
    with closing(_store(empty)) as store, pytest.raises(StoreMisconfigured, match="tables are missing") as found:
        store.acquire(KEY, lease_request())
    assert "`repot store migrate`" in found.value.hint
    assert PASSWORD not in str(found.value)


def test_older_tables_are_named(empty: str) -> None:
    _repot(empty, "store", "migrate", "--execute")
    _run_sql(empty, "ALTER TABLE repot_idempotency DROP COLUMN held_for")
    with closing(_store(empty)) as store, pytest.raises(StoreMisconfigured, match="of another version of repot"):
        store.acquire(KEY, lease_request())


@pytest.mark.promise("postgresql")
@pytest.mark.parametrize("name", ["postgresql", "mariadb"])
def test_an_address_that_is_wrong_is_named(request: pytest.FixtureRequest, name: str) -> None:
    server: PrivateDatabase = request.getfixturevalue(name)
    base, _, database = server.url.rpartition("/")
    for url, kind, words in (
        (server.url.replace(PASSWORD, f"{PASSWORD}-wrong"), StoreRefused, "user and password do not match"),
        (f"{base}/none", StoreMisconfigured, "the database does not exist"),
        (server.at(free_port()), StoreUnreachable, "no connection"),
        (f"{base.replace('127.0.0.1', 'nowhere.invalid')}/{database}", StoreUnreachable, "no connection"),
    ):
        with closing(_store(url, socket_connect_timeout=2)) as store, pytest.raises(RepotError) as found:
            store.acquire(KEY, lease_request())
        assert type(found.value) is kind, found.value
        assert words in found.value.message
        assert PASSWORD not in str(found.value)


@pytest.mark.parametrize("name", ["postgresql", "mariadb"])
def test_a_user_without_rights_is_named(request: pytest.FixtureRequest, name: str) -> None:
    server: PrivateDatabase = request.getfixturevalue(name)
    user = f"u{uuid4().hex[:8]}"
    with _database_of(server) as url:
        _repot(url, "store", "migrate", "--execute")
        made = {
            "postgresql": f"CREATE USER {user} PASSWORD '{PASSWORD}'",
            "mariadb": f"CREATE USER {user} IDENTIFIED BY '{PASSWORD}'",
        }
        _run_sql(url, made[name])
        if name == "mariadb":
            _run_sql(url, f"GRANT SELECT ON *.* TO {user}")
        few = url.replace("//shop:", f"//{user}:")
        with closing(_store(few)) as store, pytest.raises(StoreRefused, match="lacks a right") as found:
            store.acquire(KEY, lease_request())
        assert PASSWORD not in str(found.value)
        enough = {
            "postgresql": f"GRANT SELECT, INSERT, UPDATE, DELETE ON repot_idempotency TO {user}",
            "mariadb": f"GRANT SELECT, INSERT, UPDATE, DELETE ON repot_idempotency TO {user}",
        }
        _run_sql(url, enough[name])
        with closing(_store(few)) as store:
            assert isinstance(store.acquire(KEY, lease_request()), Acquired)
        _run_sql(url, *([f"DROP OWNED BY {user}"] if name == "postgresql" else []), f"DROP USER {user}")


def test_a_server_that_is_read_only_is_unavailable(postgresql: PrivateDatabase) -> None:
    """As a replica, or a primary after its disk has filled."""
    with _database_of(postgresql) as url:
        _repot(url, "store", "migrate", "--execute")
        name = url.rpartition("/")[2]
        _run_sql(url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        with closing(_store(url)) as store:
            with pytest.raises(StoreUnreachable, match="only the primary takes writes"):
                store.acquire(KEY, lease_request())
            # one that asks is answered
            assert store.inspect(KEY.key) is None
            # another server is the primary: an old connection would stay with the one that is read-only
            _run_sql(postgresql.url, f"ALTER DATABASE {name} SET default_transaction_read_only = off")
            who = lease_request()
            with suppress(StoreUnreachable):
                store.acquire(KEY, who)
            assert isinstance(store.acquire(KEY, who), Acquired)


@pytest.mark.parametrize("is_connected", [False, True])
@pytest.mark.parametrize("name", ["postgresql", "mariadb"])
def test_a_frozen_server_is_unavailable(request: pytest.FixtureRequest, name: str, is_connected: bool) -> None:
    """Its machine accepts a connection, and takes what is sent over an open one; nothing answers."""
    server: PrivateDatabase = request.getfixturevalue(name)
    timed = TimedDatabase(server.url, lease=3, socket_connect_timeout=1)
    store, who = timed.store, lease_request()
    with closing(store):
        store.acquire(KEY, who)
        if not is_connected:
            store.close()
        with server.frozen(), pytest.raises(StoreUnreachable, match="no answer in time"):
            store.acquire(KEY, who)
        assert isinstance(store.acquire(KEY, who), Acquired)


@pytest.mark.parametrize(("name", "sleep"), [("postgresql", "pg_sleep(2.5)"), ("mariadb", "SLEEP(2.5)")])
def test_a_statement_of_the_application_takes_as_long_as_it_takes(
    request: pytest.FixtureRequest, name: str, sleep: str
) -> None:
    """What the store itself asks has the time limit of a lease of 3 s."""
    timed = TimedDatabase(request.getfixturevalue(name).url, lease=3)
    with closing(timed.store), timed.store.new_session() as session:
        with pytest.raises(StoreUnreachable, match="no answer in time"):
            timed.store.database.read(lambda connection: connection.execute(text(f"SELECT {sleep}")))
        assert session.execute(text(f"SELECT {sleep}, 7")).one()[1] == 7


def test_a_connection_in_use_is_closed_after_its_transaction(postgresql: PrivateDatabase) -> None:
    """Another thread may be in a transaction when the store is closed."""
    database = Database(ExplicitSettings(lease_store=postgresql.url))
    with database.engine.begin() as connection:
        driver = connection.connection.driver_connection
        database.close()
        assert connection.execute(text("SELECT 1")).all() == [(1,)]
    assert driver is not None
    assert driver.closed


def test_files_that_are_no_store_are_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database, but a text that is long enough to be looked at" * 10)
    for path, kind in ((tmp_path / "missing" / "file", StoreRefused), (tmp_path / "text", StoreMisconfigured)):
        with closing(_store(f"sqlite:///{path}")) as store, pytest.raises(RepotError) as found:
            store.acquire(KEY, lease_request())
        assert type(found.value) is kind, found.value


def test_a_full_file_is_unavailable_and_loses_nothing(sqlite: FileDatabase) -> None:
    timed = TimedDatabase(sqlite.url)
    request = lease_request()
    timed.store.acquire(KEY, request)
    with timed.store.database.engine.connect() as connection:
        pages = connection.execute(text("PRAGMA page_count")).scalar_one()
    # of each connection: the pool has one
    with timed.store.database.engine.connect() as connection:
        connection.execute(text(f"PRAGMA max_page_count = {pages}"))
    big = Ending(RunOutcome.DONE, 3600, '"' + "x" * 100_000 + '"')
    with pytest.raises(StoreUnreachable, match="the disk is full"):
        timed.store.finish(KEY.key, request.owner, big)
    with timed.store.database.engine.connect() as connection:
        connection.execute(text(f"PRAGMA max_page_count = {pages + 100}"))
    assert timed.store.finish(KEY.key, request.owner, big) is FinishResult.OK
    timed.store.close()


def test_a_full_mariadb_is_unavailable_and_loses_nothing() -> None:
    """Its files may not grow, as on a full disk."""
    limits = ("--innodb-file-per-table=0", "--innodb-data-file-path=ibdata1:14M")
    with private_mariadb(*limits) as server, closing(TimedDatabase(server.url).store) as store:
        request, database = lease_request(), store.database
        store.acquire(KEY, request)
        _run_sql(server.url, "CREATE TABLE filler (what LONGTEXT)")
        filler = text("INSERT INTO filler (what) VALUES (REPEAT('x', 100000))")

        def fill() -> None:
            for _ in range(1000):
                database.transact(lambda connection: connection.execute(filler))

        with pytest.raises(StoreUnreachable, match="the disk is full, or a limit is reached") as refused:
            fill()
        assert PASSWORD not in str(refused.value)
        big = Ending(RunOutcome.DONE, 3600, '"' + "x" * 300_000 + '"')
        with pytest.raises(StoreUnreachable, match="the disk is full"):
            store.finish(KEY.key, request.owner, big)
        server.restart("--innodb-data-file-path=ibdata1:14M;ibdata2:14M")
        assert store.finish(KEY.key, request.owner, big) is FinishResult.OK


def test_a_file_that_another_process_keeps_locked_is_unavailable(sqlite: FileDatabase) -> None:
    timed = TimedDatabase(sqlite.url, socket_timeout=0.3)
    with closing(sqlite3.connect(sqlite.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnreachable, match="another process has written"):
            timed.store.acquire(KEY, lease_request())
        # a reader waits for no writer
        assert timed.store.inspect(KEY.key) is None
        other.execute("ROLLBACK")
    assert isinstance(timed.store.acquire(KEY, lease_request()), Acquired)
    timed.store.close()


@pytest.mark.parametrize("name", ["sqlite", "postgresql", "mariadb"])
def test_many_that_want_one_key_at_once_get_it_once(request: pytest.FixtureRequest, name: str) -> None:
    """Some meet the others' rows as duplicates or deadlocks, and try again."""
    timed = TimedDatabase(request.getfixturevalue(name).url)
    with ThreadPoolExecutor(12) as pool:
        for number in range(10):
            key = Fingerprint(f"{number:064}")
            answers = list(pool.map(lambda _, key=key: timed.store.acquire(key, lease_request()), range(12)))
            assert sorted(type(one).__name__ for one in answers) == ["Acquired", *["Running"] * 11]
    timed.store.close()


def test_what_waits_behind_a_transaction_gets_the_key_when_that_is_over(postgresql: PrivateDatabase) -> None:
    timed = TimedDatabase(postgresql.url)
    first = lease_request()
    timed.store.acquire(KEY, first)
    with ThreadPoolExecutor() as pool, timed.store.database.engine.begin() as connection:
        done = Ending(RunOutcome.RELEASED, 3600)
        assert timed.store.finish_on(connection, KEY.key, first.owner, done) is FinishResult.OK
        waiting = pool.submit(timed.store.acquire, KEY, lease_request())
        # a reader waits for no writer
        with closing(DatabaseLeaseStore(timed.settings)) as other:
            assert other.inspect(KEY.key) is not None
        assert not waiting.done()
        connection.commit()
        assert isinstance(waiting.result(timeout=20), Acquired)
    timed.store.close()


@pytest.mark.parametrize("name", ["sqlite", "postgresql", "mariadb"])
def test_what_is_over_is_deleted_in_time(request: pytest.FixtureRequest, name: str) -> None:
    timed = TimedDatabase(request.getfixturevalue(name).url)
    for number in range(3):
        who = lease_request()
        timed.store.acquire(Fingerprint(f"{number:064}"), who)
        timed.store.finish(f"{number:064}", who.owner, Ending(RunOutcome.DONE, 3600))
    assert timed.store.clean() == 0
    timed.advance(7200)
    assert timed.store.clean() == 3
    assert timed.store.clean() == 0
    timed.store.close()


def test_odd_texts_are_stored(postgresql: PrivateDatabase) -> None:
    """PostgreSQL knows no NUL; half of a pair is no UTF-8; a name may be long."""
    timed = TimedDatabase(postgresql.url)
    who = lease_request("t" * 5000 + "\0\ud800", worker="w\0")
    assert isinstance(timed.store.acquire(KEY, who), Acquired)
    assert isinstance(timed.store.acquire(KEY, lease_request()), Running)
    timed.store.finish(KEY.key, who.owner, Ending(RunOutcome.FAILED, 3600, error="\0\ud800"))
    record = timed.store.inspect(KEY.key)
    assert record is not None
    assert record.error == "\N{REPLACEMENT CHARACTER}?"
    timed.store.close()


def test_the_commands_of_leases(postgresql: PrivateDatabase) -> None:
    timed = TimedDatabase(postgresql.url)
    timed.store.acquire(KEY, lease_request("the-task"))
    timed.advance(7200)
    env = {"WORKER_LEASE_STORE": postgresql.url, "WORKER_LEASE_PREFIX": timed.settings.lease_prefix}

    def repot(*words: str) -> Result:
        found = CliRunner().invoke(main, ["leases", *words], env=env)
        assert PASSWORD not in found.output
        assert found.exit_code == 0, found.output
        return found

    assert "unknown" in repot("list").stdout
    assert json.loads(repot("show", "the-task", "--json").stdout)["runs"] == 1
    assert "1 with an unknown outcome" in repot("reap", "--as", "run-again", "--execute").stderr
    assert "released" in repot("list").stdout
    timed.store.close()


def test_no_password_is_logged(postgresql: PrivateDatabase, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    timed = TimedDatabase(postgresql.url)
    timed.store.acquire(KEY, lease_request())
    assert PASSWORD not in caplog.text + repr(timed.store.database.engine) + repr(timed.settings)
    timed.store.close()
