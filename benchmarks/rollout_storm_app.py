"""The application of `benchmarks/rollout_kills.py`: runs and effects are lines in a Redis that is not killed.

So are counts of what was published and of what ended, by side, which its own signals count beside the rollout. With
`STORM_BEAT` in the environment it has a schedule, and what is published is a line in that file, as a producer has it.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from threading import Event
from typing import Any

from celery import Celery, Task, signals
from redis import Redis

import repot
from repot.idempotency import PARK, Backoff, IdempotentTask, Policy
from repot.worker.configure import configured_with

app = Celery("rollout_storm")
# a broker that starts again takes ten seconds
app.conf.task_publish_retry_policy = {
    "max_retries": 100,
    "interval_start": 0.1,
    "interval_step": 0.2,
    "interval_max": 1,
}
repot.configure(app)

if beat_file := os.environ.get("STORM_BEAT"):
    app.conf.beat_schedule = {
        "note": {"task": "rollout_storm_app.note", "schedule": 1.0},
        "parent": {"task": "rollout_storm_app.parent", "schedule": 3.0, "args": ([],)},
    }

QUICK = Backoff(base_s=0.2, cap_s=1)


@cache
def store() -> Any:
    """The Redis of the lines; of this process."""
    settings = configured_with(app)
    assert settings is not None
    return Redis.from_url(settings.result_backend.reveal())


def _count(key: str, side: str) -> None:
    settings = configured_with(app)
    assert settings is not None
    store().hincrby(f"{settings.lease_prefix}:{key}", side, 1)


@signals.after_task_publish.connect  # type: ignore[untyped-decorator,unused-ignore]
def _published(sender: str, headers: dict[str, Any], **_: Any) -> None:
    """Count a message of this application, by the side that its stamp names."""
    if not sender.startswith(f"{__name__}."):
        return
    _count("published", str(headers.get("repot_rollout", "")).rpartition(":")[2])
    if beat_file:
        line = {"unit": headers["id"].partition("-")[0], "kind": "beat", "ids": [headers["id"]], "sent": True}
        with Path(beat_file).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


@signals.task_postrun.connect  # type: ignore[untyped-decorator,unused-ignore]
def _ended(task: Any, **_: Any) -> None:
    """Count a run, also one that is sent again."""
    settings = configured_with(app)
    if task.name.startswith(f"{__name__}.") and settings is not None:
        _count("ended", str(settings.rollout_side))


def ran(task: Any, what: str = "ran", after_s: float = 0.0, order: str = "") -> str:
    """Add a line about a run, with the effect of an order, if it has one; between two pauses for kills."""
    settings = configured_with(app)
    assert settings is not None
    Event().wait(after_s / 2)
    request = task.request
    line = {
        "what": what,
        "id": request.id,
        "try": request.retries,
        "side": settings.rollout_side,
        "root": request.root_id,
        "stamp": request.get("repot_rollout"),
        "pid": os.getpid(),
    }
    with store().pipeline() as pipe:
        pipe.rpush(f"{settings.lease_prefix}:ran", json.dumps(line))
        if order:
            pipe.hincrby(f"{settings.lease_prefix}:effects", order, 1)
        pipe.execute()
    Event().wait(after_s / 2)
    return str(request.id)


class Again(Task):  # type: ignore[misc,type-arg,unused-ignore]
    """Comes back soon after its process was killed."""

    abstract = True
    max_retries = None
    default_retry_delay = 1


@app.task(base=Again, bind=True)
def note(self: Any, *_: Any, after_s: float = 0.0) -> str:
    """Run; a link of a chain, a part or the body of a chord."""
    return ran(self, after_s=after_s)


@app.task(base=Again, bind=True)
def again(self: Any, times: int) -> str:
    """Come back some times; only the last run counts as finished."""
    if self.request.retries < times:
        ran(self, "try")
        raise self.retry(countdown=0.5)
    return ran(self)


@app.task(base=Again, bind=True)
def parent(self: Any, children: list[str]) -> str:
    """Send others."""
    for child in children:
        note.apply_async(task_id=child)
    return ran(self)


class Unavailable(Exception):
    """A temporary failure."""


class Guarded(IdempotentTask):
    """Comes back quickly."""

    abstract = True
    backoff = QUICK
    transient = (Unavailable,)
    max_retries = None
    default_retry_delay = 1


def effect(task: Any, order: str, after_s: float, *, flaky: bool) -> str:
    """Have the effect of an order."""
    if flaky and not task.request.retries:
        raise Unavailable(order)
    task.ensure_lease_held()
    return ran(task, after_s=after_s, order=order)


@app.task(base=Guarded, bind=True, idempotency=Policy(key=("order",), on_unknown=PARK, wait=QUICK))
def park(self: Any, order: str, after_s: float, *, flaky: bool = False) -> str:
    """At most once."""
    return effect(self, order, after_s, flaky=flaky)


@app.task(base=Guarded, bind=True, idempotency=Policy(key=("order",), max_unknown_outcomes=100, wait=QUICK))
def rerun(self: Any, order: str, after_s: float, *, flaky: bool = False) -> str:
    """At least once: again after each unknown outcome."""
    return effect(self, order, after_s, flaky=flaky)
