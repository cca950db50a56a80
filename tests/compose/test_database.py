"""The stack without any Redis: RabbitMQ, and PostgreSQL for results, leases, jobs, rollouts and the outbox."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from repot.config import inherited_environment
from repot.errors import StoreUnreachable
from repot.idempotency.fingerprint import Fingerprint
from repot.idempotency.records import Ending, FinishResult, RunOutcome
from repot.testbed import free_port
from repot.waiting import wait_until
from support.docker import docker
from support.leases import TimedDatabase, lease_request
from support.stack import Stack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.stack import Images

_STAND_IN = Path(__file__).parent / "images"

#: Sends in a transaction that is committed, and in one that is rolled back; prints what the worker answers.
_ORDERS = """
from sqlalchemy.orm import Session
from repot import outbox
from repot.idempotency.guard import guard_of
from repot.worker.app import app
engine = guard_of(app).store.database.engine
with Session(engine) as session, session.begin():
    kept = outbox.send(session, "repot.run", (0,), app=app)
with Session(engine) as session:
    dropped = outbox.send(session, "repot.run", (0,), app=app)
    session.rollback()
print(kept.get(timeout=30)["task"] == kept.id, dropped.state)
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, images: Images) -> Iterator[Stack]:
    _require_postgres()
    with Stack(tmp_path_factory.mktemp("stack"), images, "database").running() as running:
        yield running


def _require_postgres() -> None:
    """Make a stand-in where the image cannot be pulled."""
    environment = inherited_environment(without=())
    for command in (
        ["docker", "image", "inspect", "postgres:17"],
        ["docker", "pull", "--quiet", "postgres:17"],
        [
            "docker",
            "build",
            "--quiet",
            "--tag",
            "postgres:17",
            "--file",
            str(_STAND_IN / "postgres.Dockerfile"),
            str(_STAND_IN),
        ],
    ):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
        if not done.returncode:
            return
    pytest.fail(done.stderr)


def test_no_redis_runs_and_a_task_that_leaves_with_a_commit_completes(stack: Stack) -> None:
    services = stack.compose("ps", "--services").stdout.split()
    assert {"postgres", "rabbitmq", "relay", "worker"} == set(services)
    done = stack.inside("worker", "python3", "-c", _ORDERS)
    assert "True PENDING" in done.stdout, done.stdout + done.stderr + stack.logs("relay")


def test_the_probes_answer(stack: Stack) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{stack.variables['HEALTHCHECK_PORT']}/health") as answer:
        assert json.load(answer)["status"] == "healthy"
    port = stack.variables["RELAY_PORT"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready") as answer:
        assert answer.read() == b"publishing\n"

    def published() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            return re.search(r"repot_outbox_published_total [1-9]", answer.read().decode()) is not None

    wait_until(published, within_s=30, what="the relay counts", poll_s=0.5)


def test_repots_commands_need_no_redis(stack: Stack) -> None:
    for words in (
        ("store", "migrate"),
        ("leases", "list"),
        ("outbox", "list"),
        ("dlq", "list"),
        ("inflight", "list"),
        ("healthcheck", "probe", "--ready"),
    ):
        done = stack.inside("worker", "repot", *words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        assert stack.variables["DATABASE_PASSWORD"] not in done.stdout + done.stderr


def test_it_comes_back_after_its_database_was_killed(stack: Stack) -> None:
    subprocess.run(["docker", "kill", stack.container("postgres")], capture_output=True, check=True)
    again = stack.up()
    assert again.returncode == 0, again.stderr + stack.logs("relay")
    done = stack.inside("worker", "python3", "-c", _ORDERS)
    assert "True PENDING" in done.stdout, done.stdout + done.stderr + stack.logs("relay")
    logs = stack.logs("relay") + stack.logs("worker") + stack.logs("migrate")
    assert stack.variables["DATABASE_PASSWORD"] not in logs


def test_a_full_disk_is_unavailable_and_loses_nothing(stack: Stack) -> None:
    """A PostgreSQL whose data directory has a size of its own."""
    del stack  # its image is there
    name, port = f"repot-test-postgres-{uuid4().hex[:8]}", free_port()
    variables = ("POSTGRES_USER=shop", "POSTGRES_DB=shop", "POSTGRES_PASSWORD=planted", "PGDATA=/full/data")
    options = ["--publish", f"127.0.0.1:{port}:5432", "--tmpfs", "/full:size=100m,mode=1777"]
    options += [part for one in variables for part in ("--env", one)]
    docker("run", "--detach", "--name", name, *options, "postgres:17")
    try:
        url = f"postgresql+psycopg://shop:planted@127.0.0.1:{port}/shop"
        wait_until(lambda: _answers(url), within_s=60, what="PostgreSQL answers", poll_s=0.2)
        with closing(TimedDatabase(url).store) as store:
            key, request = Fingerprint("0" * 64), lease_request()
            store.acquire(key, request)
            # without a log: that of a full disk would end the server
            create = text("CREATE UNLOGGED TABLE filler (what text STORAGE EXTERNAL)")
            filler = text("INSERT INTO filler SELECT repeat(md5(random()::text), 20000) FROM generate_series(1, 5)")
            store.database.transact(lambda one: one.execute(create))

            def fill() -> None:
                for _ in range(100):
                    store.database.transact(lambda one: one.execute(filler))

            with pytest.raises(StoreUnreachable, match="the disk is full"):
                fill()
            ending = Ending(RunOutcome.DONE, 3600, '"' + "".join(map(str, range(100_000))) + '"')
            with pytest.raises(StoreUnreachable, match="the disk is full"):
                store.finish(key.key, request.owner, ending)
            store.database.transact(lambda one: one.execute(text("DROP TABLE filler")))
            assert store.finish(key.key, request.owner, ending) is FinishResult.OK
    finally:
        docker("rm", "--force", "--volumes", name)


def _answers(url: str) -> bool:
    engine = create_engine(url)
    try:
        engine.connect().close()
    except OperationalError:
        return False
    finally:
        engine.dispose()
    return True
