"""What an operator sees of a rollout between two virtual hosts of a RabbitMQ, whose record is in a database."""

from __future__ import annotations

import sys
from contextlib import closing
from http.client import HTTPConnection
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from sqlalchemy import create_engine, select

from repot.cli.main import main
from repot.config import as_environment, inherited_environment
from repot.database import rollout_tables as tables
from repot.errors import StoreMisconfigured, StoreRefused, StoreUnreachable
from repot.rollout import side_watch
from repot.rollout.phases import Phase, Plan
from repot.rollout.rollout import open_rollout
from repot.routing.side import Side
from repot.testbed import LOOPBACK, ReapedProcess, free_port
from repot.waiting import wait_until
from support.databases import PASSWORD
from support.moves import task
from support.rollouts import NAME, Rollout, without_redis

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result

    from repot.testbed import Server
    from support.databases import PrivateDatabase


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of a busy machine answers later."""
    monkeypatch.setattr(side_watch, "_REPLIES_S", 20)


@pytest.fixture
def rollout(rabbitmq: Server, postgresql: PrivateDatabase, tmp_path: Path) -> Iterator[Rollout]:
    found = without_redis(rabbitmq, postgresql, tmp_path)
    yield found
    found.stop()


def repot(rollout: Rollout, *words: str, **variables: Any) -> Result:
    environment = {**as_environment(rollout.settings), **variables}
    return CliRunner().invoke(main, ["rollout", *words], env=environment)


@pytest.mark.promise
def test_nothing_speaks_of_a_redis_and_no_password_is_kept_or_shown(
    rollout: Rollout, postgresql: PrivateDatabase, tmp_path: Path
) -> None:
    for side in Side:
        rollout.start_worker(side, 1)
    # the application of this process may have the queue of another test
    plan = ["--queue", rollout.queue, "--steps", "50,100", "--bake", "1s", "--samples", "1"]
    with open_rollout(NAME, rollout.settings) as opened:
        with closing(opened.watch(Plan(queues=(rollout.queue,)))) as watch:
            wait_until(lambda: not watch.obstacles(), within_s=60, what="the target is ready")
            # what is not counted yet may be in use
            for side in Side:
                wait_until(watch.sides[side].depths, within_s=60, what="its queues are counted")
        shown = [repot(rollout, "plan", NAME, *plan), repot(rollout, "start", NAME, *plan)]
        opened.begin(Plan(queues=(rollout.queue,), manual=True), "ann")
        wait_until(lambda: len(opened.tally.workers()) == len(Side), within_s=30, what="both workers report")
    shown += [repot(rollout, *words, NAME) for words in (["promote", "--why", "good"], ["status"], ["history"])]
    shown.append(repot(rollout, "report", NAME, "--html", str(tmp_path / "report.html")))
    assert [0] * len(shown) == [one.exit_code for one in shown], "\n".join(one.output for one in shown)
    assert "canary at" in shown[3].output
    output = "".join(one.output for one in shown) + (tmp_path / "report.html").read_text() + page_of(rollout)
    said = [line for line in output.replace(str(tmp_path), "").splitlines() if "redis" in line.lower()]
    assert said == []
    kept = contents(postgresql.url)
    assert NAME in kept
    for secret in (PASSWORD, ":secret@"):
        assert secret not in output
        assert secret not in kept


def page_of(rollout: Rollout) -> str:
    """The page, and its first state."""
    port = free_port()
    command = [sys.executable, "-m", "repot", "rollout", "serve", NAME, "--port", str(port)]
    environment = inherited_environment(without=("WORKER_",)) | as_environment(rollout.settings)
    served = ReapedProcess(command, log=rollout.directory / "page.log", environment=environment)
    found: list[str] = []

    def answers() -> bool:
        try:
            with closing(HTTPConnection(LOOPBACK, port, timeout=10)) as connection:
                connection.request("GET", "/")
                found.append(connection.getresponse().read().decode())
        except OSError:
            return False
        return True

    try:
        wait_until(answers, within_s=30, what="the page is served")
        return found[0] + served.log_tail(100)
    finally:
        served.stop()


def contents(url: str) -> str:
    """All rows of rollouts."""
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            found = [tables.fields, tables.counts, tables.scores, tables.lines]
            return str([row for one in found for row in connection.execute(select(one))])
    finally:
        engine.dispose()


def test_what_waits_on_the_target_of_an_abort_is_moved_back(rollout: Rollout) -> None:
    """No worker of the target is there to finish it; the journal of the move is in the database."""
    for worker in [rollout.start_worker(side, 1) for side in Side]:
        worker.stop()
    plan = Plan(queues=(rollout.queue,), moves=True)
    with open_rollout(NAME, rollout.settings) as opened:
        with closing(opened.watch(plan).sides[Side.TARGET].connect()) as broker:
            assert all(one.is_confirmed for one in broker.publish(rollout.queue, [task(place) for place in range(30)]))
        opened.begin(plan, "ann")
        aborted = repot(rollout, "abort", NAME, "--why", "its workers are gone")
        assert aborted.exit_code == 0, aborted.output
        ended = opened.controller().run(Event())
    assert ended.phase == Phase.ABORTED
    assert "30 moved to the other side" in ended.why
    assert [len(rollout.waiting(side)) for side in (Side.SOURCE, Side.TARGET)] == [30, 0]


@pytest.mark.parametrize("word", ["plan", "start", "status", "history"])
def test_a_database_that_does_not_serve_is_one_clear_error(
    word: str, rollout: Rollout, postgresql: PrivateDatabase
) -> None:
    stores = {
        postgresql.at(free_port()): (StoreUnreachable, "did not answer"),
        postgresql.url.replace("//shop:", "//other:"): (StoreRefused, "refuses access"),
        f"sqlite:///{rollout.directory}/empty.db": (StoreMisconfigured, "the tables are missing"),
    }
    for url, (error, said) in stores.items():
        shown = repot(rollout, word, NAME, *(["--execute"] if word == "start" else []), WORKER_LEASE_STORE=url)
        assert error.exit_code == shown.exit_code, shown.output
        assert said in shown.stderr
        assert shown.stderr.count("error:") == 1, shown.stderr
        assert "Traceback" not in shown.output
        assert PASSWORD not in shown.output
        if error is StoreMisconfigured:
            assert "repot store migrate" in shown.stderr
