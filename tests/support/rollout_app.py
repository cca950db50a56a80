"""An application whose tasks say on which side of a rollout they ran: one line in a file for each run."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from celery import Celery, Task, chord, group

import repot
from repot.waiting import wait_until
from repot.worker.configure import configured_with

if TYPE_CHECKING:
    from pathlib import Path

app = Celery("rollout")
app.conf.task_publish_retry_policy = {"max_retries": 3, "interval_start": 0, "interval_step": 0.2}
app.conf.beat_schedule = {
    f"tick-{number}": {"task": "support.rollout_app.note", "schedule": 0.5, "args": [f"tick-{number}"]}
    for number in range(4)
}
repot.configure(app)


def path_of(suffix: str) -> Path:
    """A file of one rollout."""
    settings = configured_with(app)
    assert settings is not None
    assert settings.status_dir is not None
    return settings.status_dir.parent / f"{settings.lease_prefix}.{suffix}"


def await_stop(within_s: float) -> None:
    """Wait until the test says stop."""
    wait_until(path_of("stop").exists, within_s=within_s, what="the test says stop")


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
    # one write at the end of the file, also beside other processes
    file = os.open(path_of("ran"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{json.dumps(line)}\n".encode())
    os.close(file)


@app.task(bind=True, ignore_result=True)
def note(self: Task[Any, Any], label: str) -> None:
    """Ran."""
    record(self, label)


@app.task(bind=True)
def step(self: Task[Any, Any], before: Any, label: str = "") -> str:
    """One of a chain or chord; its first argument may be the result of the one before."""
    record(self, label or before)
    return label or cast("str", before)


@app.task(bind=True, ignore_result=True, max_retries=30)
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
    """Die in the first run, as soon as the test says stop; Celery's main process sends it again."""
    record(self, f"{label}-{self.request.retries}")
    if not self.request.retries:
        await_stop(30)
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True, ignore_result=True)
def forever(self: Task[Any, Any], label: str) -> None:
    """Send itself again, as a poller does, until the test says stop."""
    record(self, label)
    if not path_of("stop").exists():
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
    """Work on the source, and hang where the target's workers run, until the test says stop."""
    record(self, label)
    settings = configured_with(app)
    assert settings is not None
    if settings.rollout_side == "target":
        await_stop(120)
