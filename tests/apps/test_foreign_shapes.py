"""Projects of the shapes that others have: what is loaded, in which order, and whose tasks are judged."""

from __future__ import annotations

import json
import sys
import sysconfig
import textwrap
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from repot.config import inherited_environment
from support import forked

if TYPE_CHECKING:
    import subprocess


def write(directory: Path, **files: str) -> None:
    """Write the modules of a package; the names of files have no `.py`."""
    directory.mkdir(parents=True)
    (directory / "__init__.py").touch()
    for name, text in files.items():
        (directory / f"{name}.py").write_text(textwrap.dedent(text))


def doctor(directory: Path, *arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """Run the command as a process of its own, from a directory."""
    return forked.run(
        [python, "-m", "repot", "doctor", *arguments],
        cwd=directory,
        env=inherited_environment(without=("WORKER_", "CELERY_", "DJANGO_", "PYTHON")),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def judged(found: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the report on the one application."""
    assert found.stdout, found.stderr
    (report,) = json.loads(found.stdout)["applications"]
    return dict(report)


#: An application whose class of tasks can be imported once Django is set up, and whose tasks make its schedule.
DJANGO = {
    "settings": """
        SECRET_KEY = "x"
        INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "shop"]
        CELERY_BROKER_URL = "redis://localhost/0"
        CELERY_TASK_ACKS_LATE = True
        """,
    "tracing": """
        from celery import Task
        from django.contrib.auth.models import User

        class Traced(Task):
            owner = User
        """,
    "celery": """
        import os
        from celery import Celery

        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
        app = Celery("shop", task_cls="shop.tracing:Traced")
        app.config_from_object("django.conf:settings", namespace="CELERY")
        app.autodiscover_tasks()
        """,
    "tasks": """
        from shop.celery import app

        @app.task
        def bill(): ...

        @app.on_after_finalize.connect
        def schedule(sender, **_):
            sender.add_periodic_task(3600, bill.s(), name="each hour")
        """,
}


@pytest.mark.real_start
@pytest.mark.parametrize("options", [(), ("--python", sys.executable)], ids=["here", "from outside"])
def test_tasks_are_imported_before_the_application_is_finalized(tmp_path: Path, options: tuple[str, ...]) -> None:
    write(tmp_path / "shop", **DJANGO)
    (tmp_path / "Procfile").write_text("worker: celery -A shop worker -B\n")
    found = judged(doctor(tmp_path, "-A", "shop", "--format", "json", *options))
    assert found["tasks"] == 1
    assert "RPT603" in {one["rule"] for one in found["findings"]}


def test_an_application_that_is_installed_is_judged(tmp_path: Path) -> None:
    """The package that -A names is the user's, wherever pip has put it; beat's scheduler alone may read a name."""
    place = tmp_path / "environment"
    venv.create(place, symlinks=True)
    (packages,) = place.glob("lib/python*/site-packages")
    # beside what is installed here
    (packages / "tests.pth").write_text("\n".join([sysconfig.get_path("purelib"), str(Path(__file__).parents[2]), ""]))
    tasks = "from shop.extensions import app\n@app.task(acks_late=True)\ndef report(): ...\n"
    settings = "CELERY_BROKER_URL = 'redis://h/0'\nCELERY_BEAT_ALIVE_FILE = CELERY_BEAT_DEAD_FILE = '/tmp/beat'\n"
    extensions = (
        "from celery import Celery\napp = Celery('shop')\napp.config_from_object('shop.settings', namespace='CELERY')\n"
    )
    scheduler = "from shop import settings\nprint(settings.CELERY_BEAT_ALIVE_FILE)\n"
    write(packages / "shop", settings=settings, extensions=extensions, tasks=tasks, scheduler=scheduler)
    write(packages / "shop/cli", worker="from shop.extensions import app\nimport shop.tasks\n")
    python = str(place / "bin/python")
    (tmp_path / "empty").mkdir()
    found = judged(doctor(tmp_path / "empty", "-A", "shop.cli.worker:app", "--format", "json", python=python))
    assert found["tasks"] == 1
    assert [one["setting"] for one in found["findings"] if one["rule"] == "RPT525"] == ["CELERY_BEAT_DEAD_FILE"]
    # an operator's own module, which only imports it
    (tmp_path / "empty" / "ours.py").write_text("from shop.cli.worker import app\n")
    again = judged(doctor(tmp_path / "empty", "-A", "ours", "--format", "json", python=python))
    assert found["findings"] == again["findings"]


MADE = "from celery import Celery\ncelery = Celery('shop')\n"


@pytest.mark.parametrize(
    ("files", "hint"),
    [
        ({}, "As in `repot doctor -A shop.celery:app`."),
        ({"shop.py": MADE}, "This project has: `repot doctor -A shop:celery`."),
        ({"src/shop/__init__.py": MADE}, "This project has: `PYTHONPATH=src repot doctor -A shop:celery`."),
        ({"shop/jobs.py": MADE, "tests/jobs.py": MADE}, "This project has: `repot doctor -A shop.jobs:celery`."),
        ({"odd.py": "Celery(\0", "app.py": "import celery\napp: celery.Celery = celery.Celery()\n"},
         "This project has: `repot doctor -A app:app`."),
    ],
    ids=["none", "module", "src", "not of tests", "unreadable"],
)  # fmt: skip
def test_without_an_application_none_is_judged(tmp_path: Path, files: dict[str, str], hint: str) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = doctor(tmp_path)
    assert found.returncode == 2
    assert f"error: no application is named, by -A or WORKER_APP\nhint: {hint}\n" == found.stderr
    assert not found.stdout
