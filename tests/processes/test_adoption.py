"""Applications that adopt repot, as processes: in the memory of a test, and with a package called `config`."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PLANTED = "hunter2-s3cret"


def test_a_worker_runs_in_the_memory_of_a_test() -> None:
    """As an application's own tests do it; with everything that `repot.configure` gives a worker."""
    code = """
from celery import Celery
from celery.contrib.testing.worker import start_worker
import repot

app = Celery("shop", broker="memory://", backend="cache+memory://")
repot.configure(app)

@app.task
def add(a, b):
    return a + b

@app.task
def fail():
    raise RuntimeError("on purpose")

with start_worker(app, perform_ping_check=False, pool="solo"):
    print(add.delay(2, 3).get(timeout=10), type(fail.delay().get(timeout=10, propagate=False)).__name__)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert found.stdout.strip() == "5 RuntimeError", found.stderr
    assert "memory:// has no server and is for tests only" in found.stderr


def project(directory: Path, text: str, package: str = "config") -> None:
    (directory / package).mkdir()
    (directory / package / "__init__.py").touch()
    (directory / package / "celery.py").write_text(text)


ADOPTED = """
from celery import Celery
from celery.local import Proxy
import repot
app = Celery("shop")
repot.configure(app)
@app.task
def add(a, b):
    return a + b
"""


def test_a_project_whose_package_is_called_config(tmp_path: Path) -> None:
    """As many Django projects' is: `repot.config` must not be in its way, nor it in ours."""
    project(tmp_path, ADOPTED)
    for command in (["celery", "-A", "config", "report"], ["repot", "config", "show"]):
        found = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=tmp_path,
            env={"WORKER_APP": "config", "WORKER_HEARTBEAT": "7", "WORKER_BROKER_URL": f"amqp://user:{PLANTED}@host//"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert found.returncode == 0, found.stderr
        assert "broker_heartbeat" in found.stdout
        assert PLANTED not in found.stdout + found.stderr


_EMBEDDED = """
import sys
from pathlib import Path
from threading import get_ident
from celery import Celery
from celery.contrib.testing.worker import start_worker
from repot.config import ExplicitSettings
from repot.worker.status_writer import StatusWriter
from repot.worker.configure import configure

app = Celery("embedded")
addresses = {"broker_url": "memory://", "result_backend": "cache+memory://"}
configure(app, ExplicitSettings(**addresses, status_dir=Path(sys.argv[1])))
@app.task(name="nothing")
def nothing():
    pass
written = []
with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=20):
    StatusWriter.write = lambda _: written.append(get_ident())
    nothing.apply()
nothing.apply()
print(written.count(get_ident()))
"""


def test_a_solo_worker_in_a_thread_writes_its_status_around_its_own_tasks_alone(tmp_path: Path) -> None:
    """As in an application's own tests, which run tasks eagerly beside such a worker, and after it."""
    command = [sys.executable, "-c", _EMBEDDED, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "0", found.stderr
