"""An application whose tasks say on which side of a rollout they ran: one line in a Redis list for each run."""

from __future__ import annotations

import json
import os
import signal
from functools import cache
from typing import Any, cast
from uuid import uuid4

from celery import Celery, Task, chord, group
from redis import Redis

import repot
from repot.waiting import wait_until
from repot.worker.configure import configured_with

app = Celery("rollout")
app.conf.task_publish_retry_policy = {"max_retries": 3, "interval_start": 0, "interval_step": 0.2}
app.conf.beat_schedule = {
    f"tick-{number}": {"task": "support.rollout_app.note", "schedule": 0.5, "args": [f"tick-{number}"]}
    for number in range(4)
}
repot.configure(app)


@cache
def store() -> Any:
    """The Redis of the list."""
    settings = configured_with(app)
    assert settings is not None
    return Redis.from_url(settings.result_backend.reveal())


def record(task: Any, label: str) -> None:
    """Add a line about a run."""
    settings = configured_with(app)
    assert settings is not None
    request = task.request
    line = {
        "label": label,
        "task": task.name,
        "id": request.id,
        "root": request.root_id,
        "side": settings.rollout_side,
        "stamp": request.get("repot_rollout"),
        "run": uuid4().hex,
    }
    store().rpush(f"{settings.lease_prefix}:ran", json.dumps(line))


@app.task(bind=True, ignore_result=True)
def note(self: Task[Any, Any], label: str) -> None:
    """Ran."""
    record(self, label)


@app.task(bind=True)
def step(self: Task[Any, Any], before: Any, label: str = "") -> str:
    """One of a chain or chord; its first argument may be the result of the one before."""
    record(self, label or before)
    return label or cast("str", before)


@app.task(bind=True, ignore_result=True, max_retries=3)
def again(self: Task[Any, Any], label: str, times: int = 1, countdown: float = 0.5) -> None:
    """Come back some times."""
    record(self, f"{label}-{self.request.retries}")
    if self.request.retries < times:
        raise self.retry(countdown=countdown)


@app.task(bind=True, ignore_result=True)
def parent(self: Task[Any, Any], label: str) -> None:
    """Send others: one alone, a group, a chain and a chord."""
    record(self, label)
    note.delay(f"{label}-child")
    app.send_task(note.name, [f"{label}-named"])
    group(note.s(f"{label}-group-{number}") for number in range(2)).apply_async()
    (step.s(f"{label}-chain-0") | step.si(f"{label}-chain-1", f"{label}-chain-1")).apply_async()
    chord([step.s(f"{label}-head-{number}") for number in range(2)], step.si("", f"{label}-body")).apply_async()


@app.task(bind=True, ignore_result=True, default_retry_delay=1, max_retries=2)
def killed(self: Task[Any, Any], label: str) -> None:
    """Die in the first run, as soon as the list says stop; Celery's main process sends it again."""
    record(self, f"{label}-{self.request.retries}")
    settings = configured_with(app)
    assert settings is not None
    if not self.request.retries:
        wait_until(lambda: store().exists(f"{settings.lease_prefix}:stop"), within_s=30, what="the list says stop")
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True, ignore_result=True)
def forever(self: Task[Any, Any], label: str) -> None:
    """Send itself again, as a poller does, until the list says stop."""
    record(self, label)
    settings = configured_with(app)
    assert settings is not None
    if not store().exists(f"{settings.lease_prefix}:stop"):
        self.apply_async((label,), countdown=0.2)


@app.task(bind=True, ignore_result=True)
def fails_on_the_target(self: Task[Any, Any], label: str) -> None:
    """Work on the source, and fail where the target's workers run."""
    record(self, label)
    settings = configured_with(app)
    assert settings is not None
    if settings.rollout_side == "target":
        message = "a planted regression"
        raise RuntimeError(message)


@app.task(bind=True, ignore_result=True)
def hangs_on_the_target(self: Task[Any, Any], label: str) -> None:
    """Work on the source, and hang where the target's workers run, until the list says stop."""
    record(self, label)
    settings = configured_with(app)
    assert settings is not None
    if settings.rollout_side == "target":
        wait_until(lambda: store().exists(f"{settings.lease_prefix}:stop"), within_s=120, what="the list says stop")
