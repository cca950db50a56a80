"""What the doctor finds in a lease store: whether it keeps records, takes writes, and has the tables."""

from __future__ import annotations

import json
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, make_url, text

from repot.config import ExplicitSettings, inherited_environment
from repot.database.connection import Database
from repot.database.migrate import Migrations
from repot.testbed import executables, free_port, redis_server
from support import forked
from support.databases import PASSWORD, FileDatabase, PrivateDatabase, connected, private_postgresql
from support.installed import require
from support.shop import APPS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from repot.testbed import Server

EVERY = ("RPT407", "RPT713", "RPT901", "RPT902", "RPT904")


def found_in(store: str, *, broker: str) -> dict[str, str]:
    """Return what the doctor finds in a lease store, by rule."""
    report = doctor(store, broker)
    assert report["not_judged"] == []
    return {one["rule"]: one["message"] for one in report["findings"]}


def doctor(store: str, broker: str) -> dict[str, list[dict[str, str]]]:
    selected = (f"--select={rule}" for rule in EVERY)
    said = forked.run(
        [
            sys.executable,
            "-m",
            "repot",
            "doctor",
            "--app=support.guarded_app:app",
            "--live",
            "--format=json",
            *selected,
        ],
        env=inherited_environment(without=("WORKER_", "CELERY_"))
        | {"WORKER_BROKER_URL": broker, "WORKER_LEASE_STORE": store, "PYTHONPATH": APPS},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode in (0, 4), said.stderr
    assert PASSWORD not in said.stdout + said.stderr
    found: dict[str, list[dict[str, str]]] = json.loads(said.stdout)["applications"][0]
    return found


def _charge(order: str) -> None:
    """Never called here."""


def migrate(store: str) -> None:
    with closing(Database(ExplicitSettings(lease_store=store))) as database:  # type: ignore[arg-type]
        Migrations(database).apply()


def run(url: str, *statements: str) -> None:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


@contextmanager
def database_of(server: PrivateDatabase, *undo: str) -> Iterator[str]:
    """Make a database with the tables for the duration of a `with`; run statements afterwards."""
    name = f"d{uuid4().hex[:12]}"
    run(server.url, f"CREATE DATABASE {name}")
    url = make_url(server.url).set(database=name).render_as_string(hide_password=False)
    try:
        migrate(url)
        yield url
    finally:
        run(server.url, *undo, f"DROP DATABASE {name}")


@pytest.mark.parametrize(
    ("statements", "undo", "expected"),
    [
        ([], [], {}),
        (["ALTER DATABASE {name} SET synchronous_commit = off"], [], {"RPT902": "synchronous_commit is off"}),
        (["ALTER DATABASE {name} SET synchronous_commit = local"], [], {}),
        (
            ["ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()"],
            ["ALTER SYSTEM RESET fsync", "SELECT pg_reload_conf()"],
            {"RPT902": "fsync is off"},
        ),
        (
            ["ALTER TABLE repot_idempotency SET UNLOGGED"],
            [],
            {"RPT902": "repot_idempotency is UNLOGGED"},
        ),
        (["CREATE UNLOGGED TABLE caches (id int)"], [], {}),
        (["ALTER DATABASE {name} SET default_transaction_read_only = on"], [], {"RPT713": "read_only is on"}),
        (["DROP TABLE repot_schema, repot_idempotency"], [], {"RPT904": "there are no tables"}),
        (["UPDATE repot_schema SET version_num = '0001'"], [], {"RPT904": "they are at version 0001, and this repot"}),
        (["UPDATE repot_schema SET version_num = '9999'"], [], {"RPT904": "which this repot does not know"}),
    ],
)
def test_a_postgresql(
    postgresql: PrivateDatabase, redis: Server, statements: Sequence[str], undo: Sequence[str], expected: dict[str, str]
) -> None:
    with database_of(postgresql, *undo) as url:
        run(url, *(one.format(name=make_url(url).database) for one in statements))
        assert_found(expected, found_in(url, broker=redis.url))


@pytest.mark.parametrize(
    ("statements", "undo", "expected"),
    [
        ([], [], {}),
        (
            ["SET GLOBAL innodb_flush_log_at_trx_commit = 2"],
            ["SET GLOBAL innodb_flush_log_at_trx_commit = 1"],
            {"RPT902": "innodb_flush_log_at_trx_commit is 2"},
        ),
        (["ALTER TABLE repot_idempotency ENGINE = MyISAM"], [], {"RPT902": "repot_idempotency is a table of MyISAM"}),
        (["CREATE TABLE caches (id int) ENGINE = MyISAM"], [], {}),
        (["SET GLOBAL read_only = 1"], ["SET GLOBAL read_only = 0"], {"RPT713": "read_only is on"}),
        (["DROP TABLE repot_schema, repot_idempotency"], [], {"RPT904": "there are no tables"}),
    ],
)
def test_a_mariadb(
    mariadb: PrivateDatabase, redis: Server, statements: Sequence[str], undo: Sequence[str], expected: dict[str, str]
) -> None:
    with database_of(mariadb, *undo) as url:
        run(url, *statements)
        assert_found(expected, found_in(url, broker=redis.url))


def test_a_sqlite(sqlite: FileDatabase, redis: Server) -> None:
    missing = sqlite.path.with_name("missing.db")
    assert found_in(f"sqlite:///{missing}", broker=redis.url) == {"RPT904": "the file does not exist"}
    assert not missing.exists()
    run(sqlite.url, "CREATE TABLE orders (id int)")
    before = sqlite.path.read_bytes()
    assert found_in(sqlite.url, broker=redis.url) == {"RPT904": "there are no tables"}
    assert before == sqlite.path.read_bytes()
    migrate(sqlite.url)
    assert found_in(sqlite.url, broker=redis.url) == {}
    assert_found({"RPT902": "it is in the memory of each process"}, found_in("sqlite://", broker=redis.url))


def test_a_postgresql_that_follows_another(redis: Server) -> None:
    """As after a failover: alive, and read-only."""
    with private_postgresql() as server:
        migrate(server.url)
        assert found_in(server.url, broker=redis.url) == {}
        with closing(connected(server.url)) as connection:
            (directory,) = connection.execute("SHOW data_directory").fetchone()
        server.process.stop()
        (Path(directory) / "standby.signal").touch()
        server.restart()
        assert found_in(server.url, broker=redis.url) == {"RPT713": "it is a replica: pg_is_in_recovery() is true"}


def test_a_redis(redis: Server) -> None:
    """The store is another one than the broker, which the rules of a broker are about."""
    require(executables.REDIS)
    with redis_server("--maxmemory", "1gb", "--maxmemory-policy", "volatile-ttl") as store:
        found = found_in(store.url, broker=redis.url)
        assert_found({"RPT901": "maxmemory-policy is volatile-ttl", "RPT902": "appendonly is no"}, found)
        # queues do not expire, so RPT701 is silent about it
        assert_found({"RPT901": "maxmemory-policy is volatile-ttl"}, found_in(store.url, broker=store.url))
    with redis_server("--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru") as store:
        assert found_in(store.url, broker=store.url) == {}
    with redis_server("--appendonly", "yes") as store:
        assert found_in(store.url, broker=redis.url) == {}


def test_a_database_that_does_not_answer_is_unknown(redis: Server) -> None:
    store = f"postgresql+psycopg://shop:{PASSWORD}@127.0.0.1:{free_port()}/shop"
    report = doctor(store, redis.url)
    assert report["findings"] == []
    assert {"RPT713", "RPT901", "RPT902", "RPT904"} == {one["rule"] for one in report["not_judged"]}


def assert_found(expected: dict[str, str], found: dict[str, str]) -> None:
    assert expected.keys() == found.keys(), found
    for rule, words in expected.items():
        assert words in found[rule]
