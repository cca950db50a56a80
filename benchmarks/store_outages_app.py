"""The application of `benchmarks/store_outages.py`: orders, and a ledger of what became of each run."""

from __future__ import annotations

import json
import os
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery import Celery, current_task
from celery.signals import worker_init

import repot
from repot.idempotency import PARK, Backoff, IdempotentTask, Policy
from repot.idempotency.guard import guard_of
from repot.idempotency.records import Acquired, FinishMode, FinishResult, RunOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.idempotency.fingerprint import Fingerprint
    from repot.idempotency.records import Answer, Ending, LeaseRequest

app = Celery("outages")
repot.configure(app)

#: The variable that names the ledger; a line has what, when, the process, the owner of the run's lease, and the order.
LEDGER = "STORE_OUTAGES_LEDGER"
#: A lease was requested, and granted to another run; a run began, and had its effect; the store said that the outcome
#: is recorded, that the lease is released, or that another run has the key.
ASKED, DENIED, BEGUN, EFFECT, RECORDED, RELEASED, REFUSED = (
    "asked",
    "denied",
    "begun",
    "effect",
    "recorded",
    "released",
    "refused",
)

QUICK = Backoff(base_s=0.1, cap_s=0.5)


def note(what: str, owner: str, order: str = "") -> None:
    """Append a line: one write to a file opened for appending is not mixed with another process' write."""
    # of this benchmark, not of repot
    descriptor = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)  # noqa: TID251
    try:
        os.write(descriptor, (json.dumps([what, monotonic(), os.getpid(), owner, order]) + "\n").encode())
    finally:
        os.close(descriptor)


class Order(IdempotentTask):
    """A task that is delivered again quickly."""

    abstract = True
    idempotency = Policy(key=("order",), wait=QUICK)


def _ship(task: Order, order: str, before_s: float, after_s: float) -> str:
    assert task.lease
    owner = task.lease.request.owner
    note(BEGUN, owner, order)
    Event().wait(before_s)
    note(EFFECT, owner, order)
    Event().wait(after_s)
    return order


@app.task(base=Order, bind=True)
def rerun(task: Order, order: str, before_s: float, after_s: float) -> str:
    """At least once: an unknown outcome runs again."""
    return _ship(task, order, before_s, after_s)


@app.task(base=Order, bind=True, idempotency=Policy(key=("order",), on_unknown=PARK, wait=QUICK))
def park(task: Order, order: str, before_s: float, after_s: float) -> str:
    """At most once: an unknown outcome waits for an operator."""
    return _ship(task, order, before_s, after_s)


@worker_init.connect
def _note_what_is_recorded(**_: object) -> None:
    store: Any = guard_of(app).store
    ask: Callable[..., Answer] = store.acquire
    end: Callable[..., FinishResult] = store.finish

    def acquire(fingerprint: Fingerprint, request: LeaseRequest) -> Answer:
        note(ASKED, request.owner, current_task.request.kwargs["order"])
        answer = ask(fingerprint, request)
        if not isinstance(answer, Acquired):
            note(DENIED, request.owner)
        return answer

    def finish(key: str, owner: str, ending: Ending, mode: FinishMode = FinishMode.IN_LEASE) -> FinishResult:
        result = end(key, owner, ending, mode)
        if result is not FinishResult.LATE:
            ok = RECORDED if ending.outcome is RunOutcome.DONE else RELEASED
            note(ok if result is FinishResult.OK else REFUSED, owner)
        return result

    store.acquire, store.finish = acquire, finish
