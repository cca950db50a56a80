"""The commands as people run them, to the end and to an untimely one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def own_folder() -> Iterator[Path]:
    """A folder for all temporary files of a command: its processes can be told by it."""
    folder = Path(tempfile.mkdtemp(prefix="t-"))
    yield folder
    shutil.rmtree(folder)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(folder), "HOME": str(folder)}
    command = [sys.executable, "-m", "repot", *arguments]
    return subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def processes_of(folder: Path) -> list[str]:
    """Every process that was started with this folder, or one below it, for its temporary files."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and str(folder) in str(process.environ()):
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


ONE = ("chaos", "run", "connection-reset", "--profile", "redis-hardened")


def test_a_run_prints_data_and_talks_elsewhere(own_folder: Path) -> None:
    files = ("--html", "page.html", "--junit", "junit.xml", "--markdown", "matrix.md")
    with start(own_folder, *ONE, "--guard", "on", "--json", *files) as process:
        data, talk = process.communicate(timeout=200)
    assert process.returncode == 0, talk
    (result,) = json.loads(data)["results"]
    assert ("connection-reset", True) == (result["cell"]["scenario"], result["cell"]["guard"])
    assert "connection-reset/redis-hardened/guarded: redelivered" in talk
    assert "<!doctype html>" in (own_folder / "page.html").read_text()
    wait_until(lambda: not processes_of(own_folder), within_s=15, what="every process is gone")
    left = [path.name for path in own_folder.iterdir() if not path.name.startswith(".")]
    assert ["junit.xml", "matrix.md", "page.html"] == sorted(left)

    (own_folder / "run.json").write_text(data)
    with start(own_folder, "chaos", "report", "run.json", "--html", "again.html") as process:
        shown, talk = process.communicate(timeout=60)
    assert process.returncode == 0, talk
    assert "connection-reset" in shown
    assert (own_folder / "again.html").read_text() == (own_folder / "page.html").read_text()


def test_what_a_run_found_stands_in_a_table(own_folder: Path) -> None:
    with start(own_folder, *ONE, "--guard", "off") as process:
        shown, talk = process.communicate(timeout=200)
    assert process.returncode == 0, talk
    assert "duplicated" in shown


@pytest.mark.parametrize("moment", ["guard.py", " -m celery "])
def test_a_demo_that_is_killed_half_way_leaves_nothing(own_folder: Path, moment: str) -> None:
    """Killed when its first process has just been started, and when workers run."""
    with start(own_folder, "demo") as process:
        wait_until(lambda: any(moment in line for line in processes_of(own_folder)), within_s=60, what=moment)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
        wait_until(lambda: not processes_of(own_folder), within_s=20, what="every process is gone")
    left = [path.name for path in own_folder.iterdir() if not path.name.startswith(".")]
    assert left == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_shows_what_it_has(own_folder: Path, number: signal.Signals) -> None:
    arguments = ("chaos", "run", "no-fault", "dropped-ack", "--profile", "redis-stock", "--jobs", "1", "--json")
    with start(own_folder, *arguments) as process:
        assert process.stderr is not None
        talk = ""
        while "no-fault/redis-stock/guarded:" not in talk:
            line = process.stderr.readline()
            assert line, talk
            talk += line
        process.send_signal(number)
        data, rest = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in rest
    found = json.loads(data)
    assert found["interrupted"] is True
    assert ["no-fault", "no-fault"] == [result["cell"]["scenario"] for result in found["results"]]
    wait_until(lambda: not processes_of(own_folder), within_s=15, what="every process is gone")
    assert [] == [path.name for path in own_folder.iterdir() if not path.name.startswith(".")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_serves_until_asked_to_stop(own_folder: Path, number: signal.Signals) -> None:
    with start(own_folder, "up", "--json") as process:
        assert process.stdout is not None
        found = json.loads(process.stdout.readline())
        assert {"rabbitmq", "toxiproxy"} < set(found)
        assert all("127.0.0.1" in server["url"] for server in found.values())
        process.send_signal(number)
        _, talk = process.communicate(timeout=30)
    assert process.returncode == 0, talk
    assert "stopping" in talk
    wait_until(lambda: not processes_of(own_folder), within_s=15, what="every process is gone")


def test_a_report_that_cannot_be_written_is_refused_before_anything_runs(own_folder: Path) -> None:
    for arguments in (["chaos", "run", "all"], ["demo"]):
        with start(own_folder, *arguments, "--html", "/no/such/folder/x.html") as process:
            data, talk = process.communicate(timeout=20)
        assert process.returncode == 2
        assert "cannot be written to /no/such/folder/x.html" in talk
        assert not data


def test_a_file_that_is_no_report_is_refused(own_folder: Path) -> None:
    (own_folder / "x.json").write_text("{}")
    with start(own_folder, "chaos", "report", "x.json") as process:
        data, talk = process.communicate(timeout=20)
    assert process.returncode == 2
    assert not data
    assert talk.startswith("error: ")
    assert "hint: " in talk


def test_a_scenario_is_explained(own_folder: Path) -> None:
    with start(own_folder, "chaos", "explain", "killed-running") as process:
        data, talk = process.communicate(timeout=20)
    assert process.returncode == 0, talk
    assert "The worker is killed while the task runs." in data
    assert "redis-stock" in data
