"""The application of `benchmarks/kills.py`: orders whose effect is a line of the journal."""

from __future__ import annotations

import threading
from pathlib import Path
from threading import Event
from typing import Any

from celery import Celery

import repot
from repot.chaos.instruments.journal import EFFECT, Journal
from repot.idempotency import PARK, Backoff, IdempotentTask, Policy
from repot.idempotency.guard_events import guard_event

app = Celery("kills")
journal = Journal(Path(str(repot.configure(app).journal)))

#: A thread of a worker has ended by an error, or one that must run does not.
THREAD_DEAD = "thread dead"


def ended_by(error: threading.ExceptHookArgs) -> None:
    """Record that an error has ended a thread."""
    journal.write(THREAD_DEAD, "", "", error=repr(error.exc_value))


threading.excepthook = ended_by

QUICK = Backoff(base_s=0.1, cap_s=0.5)


@guard_event.connect
def record(sender: str, event: str, task_id: str, key: str, **_: object) -> None:
    """Write the events of guards into the journal."""
    journal.write(event, sender, task_id, key=key)


class Unavailable(Exception):
    """A temporary failure."""


class Order(IdempotentTask):
    """A task that is delivered again quickly, however often its process is killed."""

    abstract = True
    idempotency = Policy(key=("order",), wait=QUICK)
    transient = (Unavailable,)
    backoff = QUICK
    # a killed process costs no retry here: `max_unknown_outcomes` parks an order that kills again and again
    max_retries = None
    default_retry_delay = 0


def ship(task: Order, order: str, before_s: float, after_s: float, *, flaky: bool) -> dict[str, Any]:
    """Have the effect, between two pauses for kills; a flaky order fails at first."""
    Event().wait(before_s)
    if flaky and not task.request.retries:
        raise Unavailable(order)
    journal.write(EFFECT, task.request.hostname, task.request.id, order=order, fencing_token=task.fencing_token)
    Event().wait(after_s)
    # while a lease is held, a thread must renew it
    if task.lease and not any(thread.name == "repot-renewal" for thread in threading.enumerate()):
        journal.write(THREAD_DEAD, task.request.hostname, task.request.id, error="no renewal")
    return {"order": order, "fencing_token": task.fencing_token}


@app.task(base=Order, bind=True)
def rerun(task: Order, order: str, before_s: float, after_s: float, *, flaky: bool) -> dict[str, Any]:
    """At least once: an unknown outcome runs again."""
    return ship(task, order, before_s, after_s, flaky=flaky)


@app.task(base=Order, bind=True, idempotency=Policy(key=("order",), on_unknown=PARK, wait=QUICK))
def park(task: Order, order: str, before_s: float, after_s: float, *, flaky: bool) -> dict[str, Any]:
    """At most once: an unknown outcome waits for an operator."""
    return ship(task, order, before_s, after_s, flaky=flaky)
