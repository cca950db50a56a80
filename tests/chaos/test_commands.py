"""The commands as processes, run to their end and interrupted."""

from __future__ import annotations

import json
import re
import signal
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from repot.cli.main import main
from repot.waiting import wait_until
from support.commands import processes_of, start
from support.schemas import check

if TYPE_CHECKING:
    from pathlib import Path

#: One process runs these campaigns, and two run the others: each uses every processor.
pytestmark = pytest.mark.xdist_group("campaigns")


ONE = ("chaos", "run", "connection-reset", "--profile", "redis-brpop")


def test_a_run_prints_data_to_stdout_and_messages_to_stderr(own_directory: Path) -> None:
    files = ("--html", "page.html", "--junit", "junit.xml", "--markdown", "matrix.md")
    with start(own_directory, *ONE, "--guard", "on", "--json", *files) as process:
        data, talk = process.communicate(timeout=200)
    assert process.returncode == 0, talk
    (result,) = check("chaos run", data)["results"]
    assert (result["cell"]["scenario"], result["cell"]["guard"]) == ("connection-reset", True)
    assert "connection-reset/redis-brpop/guarded: redelivered" in talk
    assert "<!doctype html>" in (own_directory / "page.html").read_text()
    wait_until(lambda: not processes_of(own_directory), within_s=15, what="every process is gone")
    left = [path.name for path in own_directory.iterdir() if not path.name.startswith(".")]
    assert sorted(left) == ["junit.xml", "matrix.md", "page.html"]

    (own_directory / "run.json").write_text(data)
    with start(own_directory, "chaos", "report", "run.json", "--html", "again.html") as process:
        shown, talk = process.communicate(timeout=60)
    assert process.returncode == 0, talk
    assert "connection-reset" in shown
    assert (own_directory / "again.html").read_text() == (own_directory / "page.html").read_text()
    again = CliRunner().invoke(main, ["chaos", "report", str(own_directory / "run.json"), "--json"])
    assert check("chaos report", again.stdout) == json.loads(data)


@pytest.mark.parametrize("moment", ["reaper.py", " -m celery "])
def test_a_killed_demo_leaves_nothing(own_directory: Path, moment: str) -> None:
    """It is killed when its first process has just started, and when workers run."""
    with start(own_directory, "demo") as process:
        wait_until(lambda: any(moment in line for line in processes_of(own_directory)), within_s=60, what=moment)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
        wait_until(lambda: not processes_of(own_directory), within_s=20, what="every process is gone")
    left = [path.name for path in own_directory.iterdir() if not path.name.startswith(".")]
    assert left == []


@pytest.mark.parametrize(("number", "form"), [(signal.SIGINT, ("--json",)), (signal.SIGTERM, ())])
def test_an_interrupted_run_prints_its_results(
    own_directory: Path, number: signal.Signals, form: tuple[str, ...]
) -> None:
    """As JSON or as a table."""
    arguments = ("chaos", "run", "no-fault", "dropped-ack", "--profile", "redis-stock", "--guard", "off", "--jobs", "1")
    with start(own_directory, *arguments, *form) as process:
        assert process.stderr is not None
        talk = ""
        while "no-fault/redis-stock/plain:" not in talk:
            line = process.stderr.readline()
            assert line, talk
            talk += line
        process.send_signal(number)
        data, rest = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in rest
    if form:
        found = check("chaos run", data)
        assert found["interrupted"] is True
        assert [result["cell"]["scenario"] for result in found["results"]] == ["no-fault"]
    else:
        assert re.search(r"no-fault .*\bok\b", data), data
    wait_until(lambda: not processes_of(own_directory), within_s=15, what="every process is gone")
    assert [path.name for path in own_directory.iterdir() if not path.name.startswith(".")] == []


def test_up_runs_until_a_signal(own_directory: Path) -> None:
    with start(own_directory, "up", "--json") as process:
        assert process.stdout is not None
        found = json.loads(process.stdout.readline())
        assert {"rabbitmq", "toxiproxy"} < set(found)
        assert all("127.0.0.1" in server["url"] for server in found.values())
        process.send_signal(signal.SIGINT)
        _, talk = process.communicate(timeout=30)
    assert process.returncode == 0, talk
    assert "stopping" in talk
    wait_until(lambda: not processes_of(own_directory), within_s=15, what="every process is gone")


def test_up_starts_some_servers_only(own_directory: Path) -> None:
    with start(own_directory, "up", "--only", "redis", "--env", "servers.env") as process:
        assert process.stdout is not None
        wait_until((own_directory / "servers.env").exists, within_s=30, what="it serves")
        process.send_signal(signal.SIGINT)
        printed, talk = process.communicate(timeout=30)
    assert process.returncode == 0, talk
    assert re.findall(r"(?m)^(\w+)=", (own_directory / "servers.env").read_text()) == ["REDIS_URL", "REDIS_RESULTS_URL"]
    assert re.findall(r"(?m)^export (\w+)=", printed) == ["WORKER_BROKER_URL", "WORKER_RESULT_BACKEND"]
    assert "RabbitMQ" not in printed + talk
    wait_until(lambda: not processes_of(own_directory), within_s=15, what="every process is gone")


def test_a_report_that_cannot_be_written_is_refused_before_anything_runs(own_directory: Path) -> None:
    for arguments in (["chaos", "run", "all"], ["demo"]):
        with start(own_directory, *arguments, "--html", "/no/such/directory/x.html") as process:
            data, talk = process.communicate(timeout=120)
        assert process.returncode == 2
        assert "cannot be written to /no/such/directory/x.html" in talk
        assert not data


def test_a_file_that_is_not_a_report_is_refused(own_directory: Path) -> None:
    (own_directory / "x.json").write_text("{}")
    with start(own_directory, "chaos", "report", "x.json") as process:
        data, talk = process.communicate(timeout=120)
    assert process.returncode == 2
    assert not data
    assert talk.startswith("error: ")
    assert "hint: " in talk


def test_a_scenario_is_explained(own_directory: Path) -> None:
    with start(own_directory, "chaos", "explain", "killed-running") as process:
        data, talk = process.communicate(timeout=120)
    assert process.returncode == 0, talk
    assert "The worker is killed while the task runs." in data
    assert "redis-stock" in data
