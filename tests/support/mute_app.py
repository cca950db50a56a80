"""An application whose workers do not listen for commands."""

from __future__ import annotations

from typing import Any

from celery import Celery

import repot
from support.held_app import hold_until

app = Celery("mute")
repot.configure(app)
app.conf.worker_enable_remote_control = False


@app.task(bind=True)
def hold(task: Any, value: str, path: str) -> None:
    """Run until a file exists."""
    hold_until(task, value, path)
