"""An application whose tasks keep a worker busy, or expire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery import Celery

import repot
from repot.chaos.instruments.journal import EFFECT, Journal
from repot.waiting import wait_until

app = Celery("expiring")
repot.configure(app)


@app.task(bind=True)
def hold(task: Any, file: str = "") -> str:
    """Run until a file is there, or not at all."""
    Journal(Path(app.conf.repot_journal)).write(EFFECT, str(task.request.hostname), str(task.request.id))
    if file:
        wait_until(Path(file).exists, within_s=60, what=f"{file} appears")
    return "ran"


@app.task(bind=True, max_retries=1)
def twice(task: Any) -> str:
    """Run, and ask for another run."""
    Journal(Path(app.conf.repot_journal)).write(EFFECT, str(task.request.hostname), str(task.request.id))
    if not task.request.retries:
        raise task.retry(countdown=0)
    return "ran twice"
