"""What `repot init` writes, run by the programs it is written for."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from deployment import Deployment, init
from repot.waiting import wait_until
from repot.worker.journal import DELIVERED, EFFECT, READY, STARTED, Journal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.brokers.local import GuardedProcess, Server


@pytest.fixture
def deployment(server: Server, redis: Server, tmp_path: Path) -> Deployment:
    """A folder for each broker, on a private server."""
    made = Deployment(tmp_path, "redis" if server is redis else "rabbitmq")
    queue = f"q-{uuid4()}"
    made.rewrite(
        WORKER_BROKER_URL=server.url,
        WORKER_RESULT_BACKEND=redis.results_url,
        WORKER_QUEUE_NAMES=queue,
        WORKER_DEAD_LETTER_QUEUE=f"{queue}-dead",
        WORKER_JOURNAL=str(made.folder / "journal"),
    )
    return made


@contextmanager
def _supervisord(deployment: Deployment) -> Iterator[GuardedProcess]:
    with deployment.start("supervisord -c supervisord.conf") as process:
        try:
            yield process
        finally:
            # its programs are in groups of their own: nobody else ends them when the test fails
            process.signal(signal.SIGTERM)
            wait_until(lambda: process.exit_code is not None, within_s=30, what="supervisord leaves")


def test_supervisord_runs_a_worker_and_stops_it_when_its_task_has_ended(deployment: Deployment) -> None:
    """Restarted in mid-task, as a deploy does it: the task ends, once, and the next worker goes on."""
    journal = Journal(deployment.folder / "journal")

    def seen(what: str, task: str) -> int:
        return len([line for line in journal.read() if (line.what, line.task) == (what, task)])

    with _supervisord(deployment) as supervisord:
        wait_until(lambda: seen(READY, ""), within_s=60, what="the worker is ready")
        task = deployment.send("repot.run", 4)
        wait_until(lambda: seen(STARTED, str(task.id)), within_s=20, what="the task runs")
        restarted = deployment.run("supervisorctl -c supervisord.conf restart worker")
        assert 0 == restarted.returncode, restarted.stdout + supervisord.log_tail(40)
        assert {"task": task.id, "seconds": 4} == task.get(timeout=20)
        wait_until(lambda: seen(READY, "") == 2, within_s=60, what="another worker is ready")
        deployment.send("repot.run", 0).get(timeout=20)
        assert (1, 1) == (seen(DELIVERED, str(task.id)), seen(EFFECT, str(task.id)))
        supervisord.signal(signal.SIGTERM)
        wait_until(lambda: supervisord.exit_code is not None, within_s=30, what="supervisord leaves")
        assert 0 == supervisord.exit_code
        assert "stopped: worker (exit status 0)" in supervisord.log_tail(40)
        assert "SIGKILL" not in supervisord.log_tail(1000)


def test_supervisord_says_which_variable_is_missing(deployment: Deployment) -> None:
    (deployment.folder / ".env").write_text("WORKER_APP=repot.worker.app\n")
    found = deployment.run("supervisord -c supervisord.conf")
    assert 0 != found.returncode
    assert "ENV_WORKER_VISIBILITY_TIMEOUT" in found.stderr


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """With the folder filled in, as its first lines ask for."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze here")
    init(tmp_path, "--broker", "redis")
    unit = tmp_path / "systemd" / "worker.service"
    text = unit.read_text()
    assert 4 == text.count("# yours: ")
    celery = str(Path(sys.executable).parent / "celery")
    unit.write_text(text.replace("/opt/worker/.venv/bin/celery", celery).replace("/opt/worker", str(tmp_path)))
    found = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert 0 == found.returncode, found.stderr
    assert "worker.service" not in found.stderr
