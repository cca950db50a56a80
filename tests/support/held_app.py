"""An application whose tasks stay in a worker's hands until they are let go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery import Celery

import repot
from repot.chaos.instruments.journal import EFFECT, Journal
from repot.waiting import wait_until

app = Celery("held")
repot.configure(app)


def hold_until(task: Any, value: str, path: str) -> None:
    """Have an effect, wait until a file exists, and have another one."""
    _note(task, f"begun {value}")
    wait_until(Path(path).exists, within_s=300, what=f"{path} appears")
    _note(task, value)


def _note(task: Any, value: str) -> None:
    Journal(Path(task.app.conf.repot_journal)).write(
        EFFECT, str(task.request.hostname), str(task.request.id), value=value
    )


@app.task(bind=True)
def hold(task: Any, value: str, path: str) -> None:
    """Run until a file exists; have one effect at the beginning and one at the end."""
    hold_until(task, value, path)


@app.task(bind=True, acks_late=False)
def early(task: Any, value: str, path: str) -> None:
    """The same, acknowledged before it runs."""
    hold_until(task, value, path)


@app.task(bind=True, rate_limit="1/h")
def limited(task: Any, value: str, path: str) -> None:
    """The same, once an hour."""
    hold_until(task, value, path)


@app.task(bind=True, rate_limit="12/m")
def paced(task: Any, value: str, path: str) -> None:
    """The same, five seconds after the one before."""
    hold_until(task, value, path)
