"""The application of `benchmarks/kills.py`: orders whose effect is a line of the journal."""

from __future__ import annotations

import threading
from pathlib import Path
from threading import Event
from typing import Any

from celery import Celery

import repot
from repot.idempotency import PARK, Backoff, IdempotentTask, Policy
from repot.idempotency.events import happened
from repot.worker.journal import EFFECT, Journal

app = Celery("kills")
journal = Journal(Path(str(repot.configure(app).journal)))

#: A thread of a worker has ended by an error, or one that must run does not.
THREAD_DEAD = "thread dead"


def ended_by(error: threading.ExceptHookArgs) -> None:
    """Write down that an error has ended a thread."""
    journal.write(THREAD_DEAD, "", "", error=repr(error.exc_value))


threading.excepthook = ended_by

QUICK = Backoff(base_s=0.1, cap_s=0.5)


@happened.connect
def told(sender: str, what: str, task_id: str, key: str, **_: object) -> None:
    """Write what a guard says into the journal."""
    journal.write(what, sender, task_id, key=key)


class Unavailable(Exception):
    """A retry mends it."""


class Order(IdempotentTask):
    """Comes back quickly, however often its process is killed."""

    abstract = True
    idempotency = Policy(key=("order",), wait=QUICK)
    transient = (Unavailable,)
    backoff = QUICK
    # a killed process costs no retry here: `most_doubts` sets an order aside that kills again and again
    max_retries = None
    default_retry_delay = 0


def ship(task: Order, order: str, before_s: float, after_s: float, *, flaky: bool) -> dict[str, Any]:
    """Have the effect, between two pauses in which one can be killed; a flaky one fails at first."""
    Event().wait(before_s)
    if flaky and not task.request.retries:
        raise Unavailable(order)
    journal.write(EFFECT, task.request.hostname, task.request.id, order=order, fence=task.fence)
    Event().wait(after_s)
    # a lease is held: something has to renew it
    if task.lease and not any(thread.name == "repot-renewal" for thread in threading.enumerate()):
        journal.write(THREAD_DEAD, task.request.hostname, task.request.id, error="no renewal")
    return {"order": order, "fence": task.fence}


@app.task(base=Order, bind=True)
def rerun(task: Order, order: str, before_s: float, after_s: float, *, flaky: bool) -> dict[str, Any]:
    """At least once: an unknown outcome runs again."""
    return ship(task, order, before_s, after_s, flaky=flaky)


@app.task(base=Order, bind=True, idempotency=Policy(key=("order",), on_unknown=PARK, wait=QUICK))
def park(task: Order, order: str, before_s: float, after_s: float, *, flaky: bool) -> dict[str, Any]:
    """At most once: an unknown outcome waits for a person."""
    return ship(task, order, before_s, after_s, flaky=flaky)
