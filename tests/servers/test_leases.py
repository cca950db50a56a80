"""`repot leases` on records in a real store."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import Celery
from click.testing import CliRunner

from repot.cli.main import main
from repot.cli.output import PIPE_CLOSED
from repot.config import ExplicitSettings
from repot.database.migrate import Migrations
from repot.errors import ResultExpired
from repot.idempotency import Guard, IdempotentTask, Policy, guard_of, idempotent
from repot.idempotency.fingerprint import Fingerprint
from repot.idempotency.records import Acquired, Done, Ending, RunOutcome
from repot.submission.database_job_store import DatabaseJobStore
from repot.submission.job import Status
from repot.submission.job_store import Submission
from repot.submission.stores import open_job_store
from repot.upstream.app_state import state_of
from repot.waiting import wait_until
from support import forked
from support.leases import TimedRedis, lease_request

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

    from repot.testbed import Server


#: A task with the name that `lease_request` has.
LONG_KEPT = """
from {app} import app
from repot.idempotency import IdempotentTask, Policy

LONG = Policy(key=("order",), retention_s=90 * 86400)


@app.task(base=IdempotentTask, name="shop.charge", shared=False, idempotency=LONG)
def charge(order): ...
"""


class Desk:
    """An operator with the command, and a store with records."""

    def __init__(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.timed = TimedRedis(server.url)
        self.store = self.timed.store
        monkeypatch.setenv("WORKER_LEASE_STORE", server.url)
        monkeypatch.setenv("WORKER_LEASE_PREFIX", self.timed.settings.lease_prefix)

    def acquire(self, task_id: str = "", **terms: Any) -> tuple[Fingerprint, Any]:
        key, who = Fingerprint(uuid4().hex * 2), lease_request(task_id, **terms)
        assert isinstance(self.store.acquire(key, who), Acquired)
        return key, who

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(main, ["leases", *words])

    def listed(self, *words: str) -> list[dict[str, Any]]:
        result = self.run("list", "--json", *words)
        assert result.exit_code == 0, result.output
        found: list[dict[str, Any]] = json.loads(result.stdout)
        return found


@pytest.fixture
def desk(redis: Server, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A desk with a live lease, an unknown outcome and a record that is done."""
    found = Desk(redis, monkeypatch)
    found.acquire("dead")
    found.timed.advance(7200)
    done, who = found.acquire("done")
    found.store.finish(done.key, who.owner, Ending(RunOutcome.DONE, 864000, '"result"'))
    # so that the order of beginning is one
    found.timed.advance(1)
    found.acquire("alive")
    return found


def test_records_are_listed_with_their_states(desk: Desk) -> None:
    assert [(record["task_id"], record["state"]) for record in desk.listed()] == [
        ("dead", "unknown"),
        ("done", "done"),
        ("alive", "running"),
    ]
    table = desk.run("list").stdout
    assert len(table.splitlines()) == 4
    assert "shop.charge" in table


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--unknown-outcome",), ["dead"]),
        (("--state", "running", "--state", "done"), ["done", "alive"]),
        (("--older-than", "1h"), ["dead"]),
        (("--task", "alive"), ["alive"]),
        (("--task", "shop.charge", "--limit", "1"), ["dead"]),
        (("--task", "shop.other"), []),
    ],
)
def test_filters(desk: Desk, words: tuple[str, ...], expected: list[str]) -> None:
    assert expected == [record["task_id"] for record in desk.listed(*words)]


def test_a_reader_that_leaves_is_no_error(desk: Desk) -> None:
    assert desk.listed()
    command = [sys.executable, "-m", "repot", "leases", "list"]
    with forked.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        process.stdout.close()
        assert process.stderr
        assert process.stderr.read() == ""
    assert process.returncode == PIPE_CLOSED


def test_a_name_cannot_steer_the_terminal(desk: Desk) -> None:
    """Nor forge a line of the table."""
    desk.acquire("evil\n\x1b[2Jid")
    for words in (["list"], ["show", "evil\n\x1b[2Jid"]):
        shown = desk.run(*words).stdout
        assert "evil\\n\\x1b[2Jid" in shown
        assert "\x1b" not in shown
    assert len(desk.run("list").stdout.splitlines()) == 5


def test_one_is_shown_by_key_its_beginning_or_its_task(desk: Desk) -> None:
    key = desk.listed("--unknown-outcome")[0]["key"]
    for name in (key, key[:6], "dead"):
        assert json.loads(desk.run("show", name, "--json").stdout)["key"] == key
    assert "unknown" in desk.run("show", "dead").stdout


def test_a_record_that_is_not_there_is_an_error(desk: Desk) -> None:
    result = desk.run("show", "missing")
    assert result.exit_code == 1
    assert "there is no idempotency record 'missing'" in result.stderr


@pytest.mark.promise
def test_releasing_changes_nothing_without_execute(desk: Desk) -> None:
    result = desk.run("release", "dead", "--as", "done")
    assert result.exit_code == 0
    assert "nothing was changed" in result.stderr
    assert [record["task_id"] for record in desk.listed("--unknown-outcome")] == ["dead"]


@pytest.mark.promise
def test_an_unknown_outcome_is_released_as_an_operator_decides(desk: Desk) -> None:
    key = desk.listed("--unknown-outcome")[0]["key"]
    result = desk.run("release", "dead", "--as", "done", "--execute")
    assert (result.exit_code, "`repot dlq discard dead --execute`" in result.stderr) == (0, True)
    assert isinstance(desk.store.acquire(Fingerprint(key), lease_request()), Done)


@pytest.mark.parametrize("words", [("release", "one"), ("reap",)], ids=" ".join)
def test_a_caller_learns_that_an_operator_recorded_the_outcome(desk: Desk, words: tuple[str, ...]) -> None:
    """A task and a function: neither has a result to return."""
    app, policy = Celery("test", set_as_current=False, broker="memory://"), Policy(uncertain=(TimeoutError,))
    app.conf.task_always_eager = app.conf.task_eager_propagates = True
    state_of(app).guard = Guard(desk.store, ExplicitSettings())

    @app.task(base=IdempotentTask, idempotency=policy, shared=False)
    def pay(order: str) -> None:
        raise TimeoutError(order)

    @idempotent(lambda: guard_of(app), policy, name="charge")
    def charge(order: str) -> None:
        raise TimeoutError(order)

    for call in (lambda: pay.apply_async(("o",), task_id="one"), lambda: charge("o")):
        with pytest.raises(TimeoutError):
            call()
    others = [one["task_id"] for one in desk.listed("--unknown-outcome") if one["task"] == "charge"]
    for one in (words,) if words == ("reap",) else (words, ("release", *others)):
        assert desk.run(*one, "--as", "done", "--execute").exit_code == 0
    for call in (lambda: pay.apply_async(("o",), task_id="two"), lambda: charge("o")):
        with pytest.raises(ResultExpired, match="an operator has recorded that") as found:
            call()
        assert "RESULT_LIMIT" not in str(found.value.hint)


@pytest.mark.parametrize("words", [("release", "paid"), ("reap",)], ids=" ".join)
def test_a_decision_is_kept_as_long_as_the_policy_of_its_task_says(
    desk: Desk, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting says seven days; the task stands in a module that the application includes."""
    app, tasks = (f"{name}_{uuid4().hex}" for name in ("app", "tasks"))
    (tmp_path / f"{app}.py").write_text(f"from celery import Celery\n\napp = Celery('shop', include=['{tasks}'])\n")
    (tmp_path / f"{tasks}.py").write_text(LONG_KEPT.format(app=app))
    monkeypatch.syspath_prepend(tmp_path)
    key, _ = desk.acquire("paid")
    desk.timed.advance(7200)
    without = desk.run(*words, "--as", "done")
    assert "also if the policy of shop.charge says longer" in " ".join(without.stderr.split())
    result = desk.run(*words, "--as", "done", "-A", app, "--execute")
    assert (result.exit_code, "note" in result.stderr) == (0, False), result.stderr
    desk.timed.advance(80 * 86400)
    assert isinstance(desk.store.acquire(key, lease_request()), Done)


@pytest.mark.promise
def test_a_live_lease_is_refused_unless_by_force(desk: Desk) -> None:
    result = desk.run("release", "alive", "--as", "run-again", "--execute")
    assert result.exit_code == 5
    assert "is running under this lease" in result.stderr
    assert desk.run("release", "alive", "--as", "run-again", "--force", "--execute").exit_code == 0


def test_what_is_done_cannot_be_released(desk: Desk) -> None:
    """It would run a second time for certain."""
    result = desk.run("release", "done", "--as", "run-again", "--force", "--execute")
    assert result.exit_code == 5
    assert "had already ended" in result.stderr


def test_the_reaper_changes_only_unknown_outcomes(desk: Desk) -> None:
    """The flaw of a reaper that deletes live leases."""
    assert "nothing was changed" in desk.run("reap", "--as", "run-again").stderr
    result = desk.run("reap", "--as", "run-again", "--execute", "--json")
    assert [record["task_id"] for record in json.loads(result.stdout)] == ["dead"]
    assert [record["state"] for record in desk.listed()] == ["released", "done", "running"]


@pytest.mark.parametrize("name", ["redis", "sqlite"])
def test_jobs_whose_worker_died_are_listed_and_freed(
    desk: Desk, name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of a process that died between its submission and its message."""
    url = request.getfixturevalue(name).url
    monkeypatch.setenv("WORKER_LEASE_STORE", url)
    jobs = open_job_store(desk.timed.settings.replace(lease_store=url))
    if isinstance(jobs, DatabaseJobStore):
        Migrations(jobs.database).apply()
    submission = Submission("job", "t" * 64, "s" * 64, "project 7", "shop.render", "p", "", 0, 0.05)
    jobs.submit(submission)
    wait_until(lambda: list(jobs.expired()), within_s=30, what="its lease runs out")
    result = desk.run("jobs")
    assert ("project 7" in result.stdout, "nothing was changed" in result.stderr) == (True, True)
    assert [one["id"] for one in json.loads(desk.run("jobs", "--execute", "--json").stdout)] == ["job"]
    assert json.loads(desk.run("jobs", "--json").stdout) == []
    found = jobs.get("t" * 64, "job")
    assert found is not None
    assert Status.LOST is found.status
    jobs.close()


def test_many_records_are_listed_in_pages(redis: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(redis, monkeypatch)
    for _ in range(1200):
        desk.acquire()
    assert len(desk.listed("--limit", "5000")) == 1200


def test_a_store_that_is_away_is_no_empty_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_LEASE_STORE", "redis://:hunter2@127.0.0.1:1/0")
    result = CliRunner().invoke(main, ["leases", "list"])
    assert result.exit_code == 3
    assert "did not answer" in result.stderr
    assert "hunter2" not in result.output
