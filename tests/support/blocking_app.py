"""An application whose tasks let nothing else of their process run, so long as its threads are greenlets."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from celery import Celery

import repot
from repot.chaos.instruments.journal import EFFECT, Journal
from repot.idempotency import IdempotentTask, Policy

app = Celery("blocking")
repot.configure(app)

_LOOK_EVERY_US = 50_000


def _block(task: Any, value: str, path: str, how: str) -> None:
    """Have an effect, and block until a file exists."""
    Journal(Path(task.app.conf.repot_journal)).write(
        EFFECT, str(task.request.hostname), str(task.request.id), value=value
    )
    libc = ctypes.CDLL(None)
    while not os.path.exists(path):  # noqa: PTH110 - nothing of Python's that eventlet replaces
        if how == "call":
            # in C, without Python's lock: threads run, greenlets do not
            libc.usleep(_LOOK_EVERY_US)


@app.task(bind=True)
def block(task: Any, value: str, path: str, how: str) -> None:
    """Block in a loop of Python, or in a `call` of C."""
    _block(task, value, path, how)


@app.task(bind=True, base=IdempotentTask, idempotency=Policy(key=("value",)))
def guarded(task: Any, value: str, path: str, how: str) -> None:
    """The same behind the guard."""
    _block(task, value, path, how)
