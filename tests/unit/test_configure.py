"""An existing application adopts the settings with one call."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from celery import Celery
from kombu import Queue

import repot
from repot.config import ExplicitSettings
from repot.errors import AppUnusable
from repot.worker.apps import load_app, load_configured_app
from repot.worker.effective import CELERY_DEFAULT, effective_config

if TYPE_CHECKING:
    from pathlib import Path

PLANTED = "hunter2-s3cret"
RABBIT = ExplicitSettings(
    broker_url=f"amqp://user:{PLANTED}@host//",  # type: ignore[arg-type]
    result_backend=f"redis://:{PLANTED}@host/1",  # type: ignore[arg-type]
)


def test_what_repot_sets_wins_and_the_rest_stays() -> None:
    app = Celery("shop", broker="redis://elsewhere", set_as_current=False)
    app.conf.broker_transport_options = {"global_keyprefix": "shop:", "socket_timeout": 99}
    app.conf.task_queues = [Queue("own"), Queue("celery")]
    app.conf.update(event_queue_prefix="shop")
    repot.configure(app, ExplicitSettings())
    assert "redis://localhost:6379/0" == app.conf.broker_url
    assert "shop:" == app.conf.broker_transport_options["global_keyprefix"]
    assert 15 == app.conf.broker_transport_options["socket_timeout"]
    assert ["celery", "own"] == [queue.name for queue in app.conf.task_queues]
    assert "shop" == app.conf.event_queue_prefix


@pytest.mark.parametrize(
    ("namespace", "theirs"),
    [
        (None, {"broker_url": "redis://elsewhere", "event_queue_prefix": "shop"}),
        ("CELERY", {"CELERY_BROKER_URL": "redis://elsewhere", "CELERY_EVENT_QUEUE_PREFIX": "shop"}),
    ],
)
def test_a_configuration_that_is_read_later_does_not_undo_it(namespace: str | None, theirs: dict[str, str]) -> None:
    app = Celery("shop", set_as_current=False)
    repot.configure(app, RABBIT)
    app.config_from_object(SimpleNamespace(**theirs), namespace=namespace)
    assert RABBIT.broker_url.reveal() == app.conf.broker_url
    assert app.conf.task_acks_late is True
    assert "shop" == app.conf.event_queue_prefix


def test_effective_values_know_their_origin_and_hide_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_HEARTBEAT", "7")
    monkeypatch.setenv("WORKER_BROKER_URL", RABBIT.broker_url.reveal())
    app = Celery("shop", set_as_current=False)
    app.conf.update(event_queue_prefix="shop")
    app.conf.security_key_password = PLANTED
    repot.configure(app)
    found = {line.key: line for line in effective_config(app)}
    assert (7, "WORKER_HEARTBEAT (environment)") == (found["broker_heartbeat"].value, found["broker_heartbeat"].origin)
    assert "WORKER_TASK_ACKS_LATE (repot's default)" == found["task_acks_late"].origin
    assert "repot" == found["control_queue_durable"].origin
    assert "application" == found["event_queue_prefix"].origin
    assert CELERY_DEFAULT == found["enable_utc"].origin
    assert "amqp://user:**@host//" == found["broker_url"].value
    assert PLANTED not in str(found)


def project(folder: Path, text: str, package: str = "config") -> None:
    (folder / package).mkdir()
    (folder / package / "__init__.py").touch()
    (folder / package / "celery.py").write_text(text)


ADOPTED = """
from celery import Celery
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
            env={"WORKER_APP": "config", "WORKER_HEARTBEAT": "7", "WORKER_BROKER_URL": RABBIT.broker_url.reveal()},
            capture_output=True,
            text=True,
            check=False,
        )
        assert 0 == found.returncode, found.stderr
        assert "broker_heartbeat" in found.stdout
        assert PLANTED not in found.stdout + found.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_module", "no module named 'no_such_module'"),
        ("raise RuntimeError('boom')", "fails on import: RuntimeError: boom"),
        ("import sys; sys.exit('bye')", "fails on import: SystemExit: bye"),
        ("app = 5", "not a Celery application"),
        ("from celery import Celery; app = Celery('x')", "does not take its broker from WORKER_BROKER_URL"),
    ],
)
def test_an_application_that_cannot_be_used_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    name = f"shop{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AppUnusable, match=said):
        load_configured_app(f"{name}:app")


def test_repots_own_application_is_found() -> None:
    app = load_app("repot.worker.app")
    app.loader.import_default_modules()
    assert {"repot.run", "repot.fail", "repot.die", "repot.retry"} <= set(app.tasks)
