"""Private databases: PostgreSQL and MariaDB on loopback, and SQLite in a file."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import sqlite3
import subprocess
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import django
import psutil
import psycopg
import pymysql
import redis
from sqlalchemy import make_url

from repot.config import ExplicitSettings
from repot.database.connection import Database
from repot.database.migrate import Migrations
from repot.testbed import LOOPBACK, ReapedProcess, executables, free_port
from repot.testbed.process import ReapedDirectory, await_stopped
from repot.waiting import wait_until
from support.installed import absent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: The fixtures of databases.
DATABASES = ("sqlite", "postgresql", "mariadb")

#: Looked for in a planted place.
PASSWORD = "planted-9f8e"

#: Debian installs one directory for each version.
_POSTGRESQL = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))


@dataclass(slots=True)
class PrivateDatabase:
    """A server: its address for SQLAlchemy, and what starts it again on the same data."""

    url: str
    port: int
    start: Callable[..., ReapedProcess]
    await_answer: Callable[[], None]
    process: ReapedProcess

    def kill(self) -> None:
        """End it with SIGKILL, with everything it started."""
        with self._ended():
            self.process.signal(signal.SIGKILL)

    def stop(self) -> None:
        """End it, with everything it started."""
        with self._ended():
            pass

    @contextmanager
    def _ended(self) -> Iterator[None]:
        """Wait for its sessions too: they leave PostgreSQL's process group, and no new server starts beside them."""
        sessions: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            sessions = psutil.Process(self.process.pid).children(recursive=True)
        yield
        self.process.stop()
        psutil.wait_procs(sessions, timeout=60)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all its processes for the duration of a `with`; PostgreSQL's sessions leave its process group."""
        server = psutil.Process(self.process.pid)
        server.suspend()
        stopped = [server, *server.children(recursive=True)]

        def all_of_them(act: Callable[[psutil.Process], None]) -> None:
            for one in stopped:
                # a session that was about to end
                with suppress(psutil.NoSuchProcess):
                    act(one)

        try:
            all_of_them(psutil.Process.suspend)
            await_stopped([one.pid for one in stopped])
            yield
        finally:
            all_of_them(psutil.Process.resume)

    def restart(self, *options: str) -> None:
        """Start it again on its data, with more options."""
        self.stop()
        self.process = self.start(*options)
        self.await_answer()

    @property
    def results_url(self) -> str:
        """Its address as a result backend of Celery's."""
        return f"db+{self.url}"

    def at(self, port: int) -> str:
        """Return its address behind a proxy."""
        return self.url.replace(f":{self.port}/", f":{port}/")


@dataclass(frozen=True, slots=True)
class FileDatabase:
    """A SQLite file."""

    path: Path

    @property
    def url(self) -> str:
        """Its address for SQLAlchemy."""
        return f"sqlite:///{self.path}"


def connected(url: str, **options: Any) -> Any:
    """Return a connection of a driver alone, to the database at an address of SQLAlchemy's."""
    parts = make_url(url)
    address: dict[str, Any] = {"host": parts.host, "port": parts.port, "user": parts.username}
    match parts.get_dialect().name:
        case "postgresql":
            return psycopg.connect(**address, password=parts.password, dbname=parts.database, **options)
        case "sqlite":
            assert parts.database
            return sqlite3.connect(parts.database, isolation_level=None if options.get("autocommit") else "DEFERRED")
    return pymysql.connect(**address, password=parts.password, database=parts.database, **options)


@contextmanager
def django_connection(url: str, **options: Any) -> Iterator[Any]:
    """Return Django's connection to the database at an address of SQLAlchemy's, with options of DATABASES."""
    from django.conf import settings
    from django.db import connections

    if not settings.configured:
        settings.configure(DATABASES={}, INSTALLED_APPS=[], USE_TZ=True)
        django.setup()
    parts, alias = make_url(url), uuid4().hex
    engine = {"postgresql": "postgresql", "mysql": "mysql", "sqlite": "sqlite3"}[parts.get_dialect().name]
    connections.databases[alias] = {
        **connections.configure_settings({"default": {"ENGINE": f"django.db.backends.{engine}"}})["default"],
        "NAME": parts.database,
        "USER": parts.username or "",
        "PASSWORD": parts.password or "",
        "HOST": parts.host or "",
        "PORT": parts.port or "",
        **options,
    }
    connection = connections[alias]
    try:
        yield connection
    finally:
        connection.close()


D = TypeVar("D", PrivateDatabase, FileDatabase)


def with_tables(database: D) -> D:
    """Bring the tables of a database to this version of repot."""
    if isinstance(database, FileDatabase) and not database.path.exists():
        database.path.write_bytes(_file_with_tables())
    else:
        _migrate(database.url)
    return database


@cache
def _file_with_tables() -> bytes:
    """Return what a new SQLite file has then: the steps cost a test more than what it does with them."""
    with TemporaryDirectory() as directory:
        made = FileDatabase(Path(directory) / "new.db")
        _migrate(made.url)
        return made.path.read_bytes()


def _migrate(url: str) -> None:
    with closing(Database(ExplicitSettings(lease_store=url))) as opened:
        Migrations(opened).apply()


def _program(name: str, *directories: Path) -> str:
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(map(str, [*directories, "/usr/sbin"])))
    if not found:
        absent(f"{name} is not installed: scripts/setup databases")
    return found


def _as_user(name: str) -> list[str]:
    """Return the command before one that root may not run."""
    if os.geteuid():
        return []
    pwd.getpwnam(name)
    return [_program("setpriv"), f"--reuid={name}", f"--regid={name}", "--init-groups"]


@contextmanager
def private_postgresql() -> Iterator[PrivateDatabase]:
    """Start a PostgreSQL for the duration of a `with`."""
    initdb = _program("initdb", *_POSTGRESQL[-1:])
    postgres = _program("postgres", *_POSTGRESQL[-1:])
    user = _as_user("postgres")
    with ReapedDirectory("repot-postgresql-") as home:
        data, password = home.path / "data", home.path / "password"
        password.write_text(PASSWORD)
        data.mkdir(mode=0o700)
        if user:
            for path in (home.path, data, password):
                shutil.chown(path, "postgres", "postgres")
        options = ["-A", "scram-sha-256", "-U", "shop", f"--pwfile={password}", "--encoding=UTF8", "--no-locale"]
        _run([*user, initdb, "-D", str(data), *options, "--no-sync"])
        port = free_port()
        command = [*user, postgres, "-D", str(data), "-p", str(port), "-h", LOOPBACK, "-k", str(data)]
        command += ["-c", "shared_buffers=16MB", "-c", "max_connections=200"]
        url = f"postgresql+psycopg://shop:{PASSWORD}@{LOOPBACK}:{port}/postgres"

        def connect() -> None:
            psycopg.connect(url.replace("+psycopg", ""), connect_timeout=2).close()

        with _serving(command, url, port, home, connect, psycopg.OperationalError) as found:
            yield found


@contextmanager
def private_redis() -> Iterator[PrivateDatabase]:
    """Start a Redis that keeps its data when it is killed, for the duration of a `with`."""
    with ReapedDirectory("repot-redis-") as home:
        port = free_port()
        command = [executables.REDIS.find(), "--port", str(port), "--bind", LOOPBACK, "--dir", str(home.path)]
        command += ["--save", "", "--appendonly", "yes"]

        def connect() -> None:
            with redis.Redis(LOOPBACK, port, socket_timeout=2) as client:
                client.ping()

        with _serving(command, f"redis://{LOOPBACK}:{port}/0", port, home, connect, redis.RedisError) as found:
            yield found


@contextmanager
def private_mariadb(*more: str) -> Iterator[PrivateDatabase]:
    """Start a MariaDB for the duration of a `with`; `more` are options of the server."""
    install, mariadbd = _program("mariadb-install-db"), _program("mariadbd")
    user = [f"--user={pwd.getpwuid(os.geteuid()).pw_name}"]
    with ReapedDirectory("repot-mariadb-") as home:
        data, port = home.path / "data", free_port()
        setup = home.path / "setup.sql"
        setup.write_text(
            "CREATE DATABASE IF NOT EXISTS shop CHARACTER SET utf8mb4;\n"
            f"CREATE USER IF NOT EXISTS 'shop'@'%' IDENTIFIED BY '{PASSWORD}';\n"
            "GRANT ALL ON *.* TO 'shop'@'%' WITH GRANT OPTION;\n"
        )
        # files in /tmp would have the names of another server's
        own = [f"--datadir={data}", f"--tmpdir={home.path}", *user]
        _run([install, "--no-defaults", *own, "--auth-root-authentication-method=normal", *more])
        command = [
            mariadbd,
            "--no-defaults",
            f"--port={port}",
            f"--bind-address={LOOPBACK}",
            *own,
        ]
        command += [f"--socket={home.path}/socket", f"--pid-file={home.path}/pid", f"--init-file={setup}"]
        command += ["--innodb-buffer-pool-size=16M", "--skip-name-resolve", *more]
        url = f"mysql+pymysql://shop:{PASSWORD}@{LOOPBACK}:{port}/shop"

        def connect() -> None:
            pymysql.connect(
                host=LOOPBACK, port=port, user="shop", password=PASSWORD, database="shop", connect_timeout=2
            ).close()

        with _serving(command, url, port, home, connect, pymysql.err.OperationalError) as found:
            yield found


@contextmanager
def _serving(
    command: Sequence[str],
    url: str,
    port: int,
    home: ReapedDirectory,
    connect: Callable[[], None],
    not_yet: type[Exception],
) -> Iterator[PrivateDatabase]:
    environment = {"PATH": os.defpath, "LC_ALL": "C"}

    def start(*options: str) -> ReapedProcess:
        return ReapedProcess(
            [*command, *options], log=home.path / "log", environment=environment, home=home, directory=home.path
        )

    def answers() -> bool:
        assert found.process.exit_code is None, found.process.log_tail()
        try:
            connect()
        except not_yet:
            return False
        return True

    def await_answer() -> None:
        wait_until(answers, within_s=60, what=f"{Path(command[0]).name} answers", poll_s=0.1)

    found = PrivateDatabase(url, port, start, await_answer, start())
    try:
        await_answer()
        yield found
    finally:
        found.stop()


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr


#: Each server that a program may start for itself, by its fixture's name.
PRIVATE = {"postgresql": private_postgresql, "mariadb": private_mariadb}
