"""An application whose tasks are moved before they run."""

from __future__ import annotations

from pathlib import Path
from time import time
from typing import Any

from celery import Celery

import repot
from repot.chaos.instruments.journal import EFFECT, Journal

app = Celery("moved")
repot.configure(app)


def _note(task: Any, value: object) -> None:
    Journal(Path(app.conf.repot_journal)).write(
        EFFECT, str(task.request.hostname), str(task.request.id), value=value, at=time()
    )


@app.task(bind=True)
def add(task: Any, one: int, other: int) -> int:
    """Add."""
    _note(task, one + other)
    return one + other


@app.task(bind=True)
def total(task: Any, numbers: list[int]) -> int:
    """Add many."""
    _note(task, sum(numbers))
    return sum(numbers)


@app.task(bind=True, max_retries=1)
def retried(task: Any, value: str) -> str:
    """Run twice."""
    _note(task, f"{value}{task.request.retries}")
    if not task.request.retries:
        raise task.retry(countdown=1)
    return value


@app.task(bind=True)
def late(task: Any, value: str) -> str:
    """Note when it runs."""
    _note(task, value)
    return value
