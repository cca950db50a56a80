"""An application whose tasks state what they cost."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from threading import Event
from typing import Any

from celery import Celery

import repot
from repot.idempotency import IdempotentTask

app = Celery("priced")
repot.configure(app)

#: A lost run is done again: as a new message at once, or as a redelivery.
AGAIN: dict[str, Any] = {"acks_late": True, "retry_on_worker_lost": True, "default_retry_delay": 0}
REDELIVERED: dict[str, Any] = {"acks_late": True, "retry_on_worker_lost": False, "reject_on_worker_lost": True}


def die_once(path: str) -> None:
    """Kill this process in the first run."""
    if path and not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(repot_cost=repot.Cost(per_run=2), **AGAIN)
def flat(path: str = "") -> None:
    """Cost the same each time."""
    die_once(path)


@app.task(repot_cost=repot.Cost(per_run=2), **REDELIVERED)
def redelivered(path: str = "") -> None:
    """Cost the same each time."""
    die_once(path)


@app.task(repot_cost=repot.Cost(per_run=1, per_second=10))
def timed(seconds: float) -> None:
    """Cost more the longer it takes."""
    Event().wait(seconds)


@app.task(base=IdempotentTask, repot_cost=3, default_retry_delay=0)
def guarded(order: str, path: str = "") -> str:
    """Have an effect once."""
    die_once(path)
    return order


@app.task(base=IdempotentTask, repot_cost=repot.Cost(per_second=10))
def guarded_and_timed(order: str) -> str:
    """Cost by its time."""
    Event().wait(0.3)
    return order


@app.task(repot_cost="much")
def wrong() -> None:
    """State an invalid price."""


@app.task
def free() -> None:
    """State none."""
