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


def test_a_run_prints_data_and_talks_elsewhere(own_folder: Path) -> None:
    with start(own_folder, "chaos", "run", "dropped-ack", "--dedup", "on", "--json", "--html", "page.html") as process:
        data, talk = process.communicate(timeout=200)
    assert process.returncode == 0, talk
    found = json.loads(data)
    assert [("redis", 1), ("amqp", 1)] == [(run["broker"], run["verdict"]["effects"]) for run in found["runs"]]
    assert "serves after" in talk
    assert "<!doctype html>" in (own_folder / "page.html").read_text()
    wait_until(lambda: not processes_of(own_folder), within_s=15, what="every process is gone")
    assert ["page.html"] == [path.name for path in own_folder.iterdir() if not path.name.startswith(".")]


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


def test_a_run_ends_on_ctrl_c(own_folder: Path) -> None:
    with start(own_folder, "chaos", "run", "visibility-timeout", "--broker", "redis") as process:
        wait_until(lambda: any("celery" in line for line in processes_of(own_folder)), within_s=60, what="workers run")
        process.send_signal(signal.SIGINT)
        _, talk = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in talk
    wait_until(lambda: not processes_of(own_folder), within_s=15, what="every process is gone")


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


@pytest.mark.parametrize(
    "adoption",
    [
        "",
        "repot.configure(app, ExplicitSettings(broker_url='amqp://127.0.0.1:1//'))",
        "repot.configure(app); app.conf.broker_url = 'amqp://127.0.0.1:1//'",
    ],
)
def test_an_application_that_ignores_the_settings_is_not_run(own_folder: Path, adoption: str) -> None:
    """Its workers would connect to a broker that is none of the experiment's."""
    (own_folder / "shop.py").write_text(
        "from celery import Celery\nimport repot\nfrom repot.config import ExplicitSettings\n"
        f"app = Celery('shop', broker='redis://127.0.0.1:1')\n{adoption}\n"
    )
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(own_folder), "WORKER_APP": "shop"}
    command = [sys.executable, "-m", "repot", "chaos", "run", "dropped-ack"]
    found = subprocess.run(command, env=environment, cwd=own_folder, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "Call repot.configure(app)" in found.stderr


def test_a_report_that_cannot_be_written_is_refused_before_anything_runs(own_folder: Path) -> None:
    for arguments in (["chaos", "run", "all"], ["demo"]):
        with start(own_folder, *arguments, "--html", "/no/such/folder/x.html") as process:
            data, talk = process.communicate(timeout=20)
        assert process.returncode == 2
        assert "cannot be written to /no/such/folder/x.html" in talk
        assert not data


def test_an_application_of_the_users_own_is_run(own_folder: Path) -> None:
    """Adopted by one call; the experiment brings its synthetic tasks along."""
    (own_folder / "shop.py").write_text(
        "from celery import Celery\nimport repot\napp = Celery('shop')\nrepot.configure(app)\n"
    )
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(own_folder), "WORKER_APP": "shop"}
    command = [sys.executable, "-m", "repot", "chaos", "run", "connection-reset", "--broker", "redis", "--dedup", "off"]
    found = subprocess.run(command, env=environment, cwd=own_folder, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "ran twice, overlapping" in found.stdout
