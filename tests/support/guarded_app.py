"""An application of guarded tasks, whose effects are lines of the journal."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from threading import Event
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded
from celery import Celery, Task
from celery.exceptions import Ignore, Reject

import repot
from repot.chaos.instruments.journal import EFFECT, Journal
from repot.idempotency import FAIL_OPEN, PARK, Backoff, IdempotentTask, Policy
from repot.waiting import wait_until

app = Celery("guarded")
repot.configure(app)

QUICK = Backoff(base_s=0.1, cap_s=0.5)

#: Seconds; a task has its effect within that, also on a machine that pauses for two seconds.
LIMIT_S = 3


class Declined(Exception):
    """A permanent failure."""


class Unavailable(Exception):
    """A temporary failure."""


class Guarded(IdempotentTask):
    """Comes back quickly."""

    abstract = True
    idempotency = Policy(wait=QUICK)
    backoff = QUICK
    transient = (Unavailable,)
    permanent = (Declined,)
    max_retries = 2
    default_retry_delay = 0


class Mortal(Guarded):
    """Is killed, and its lease expires soon."""

    abstract = True
    idempotency = Policy(lease_s=1.5, wait=QUICK)


def effect(task: Any, value: object = None) -> None:
    """Write one line: the task's effect."""
    path = Path(app.conf.repot_journal)
    Journal(path).write(
        EFFECT, str(task.request.hostname), str(task.request.id), value=value, fencing_token=task.fencing_token
    )


def hold(file: str) -> None:
    """Wait until a file is there."""
    if file:
        wait_until(Path(file).exists, within_s=60, what=f"{file} appears")


class Audited(Task):  # type: ignore[misc,type-arg,unused-ignore]
    """Writes a line for each of its runs."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Write it, and go on."""
        request: Any = self.request
        Journal(Path(app.conf.repot_journal)).write("audited", str(request.hostname), str(request.id))
        return super().__call__(*args, **kwargs)


class GuardedAndAudited(Guarded, Audited):
    """An audit behind the guard."""

    abstract = True


@app.task(base=GuardedAndAudited, bind=True)
def audited(task: Any, order: str, failures: int = 0) -> str:
    """Fail some times, then have the effect."""
    if task.request.retries < failures:
        raise Unavailable(order)
    task.ensure_lease_held()
    effect(task, order)
    return str(task.request.id)


@app.task(base=Guarded, bind=True)
def charge(task: Any, order: str, amount: int = 1, before: str = "", after: str = "") -> dict[str, Any]:
    """Have an effect, and be held before or after it."""
    hold(before)
    effect(task, order)
    hold(after)
    return {"order": order, "amount": amount, "by": task.request.id}


@app.task(base=Mortal, bind=True)
def brief(task: Any, order: str, after: str = "") -> dict[str, Any]:
    """As `charge`, with a lease that a test sees expire."""
    effect(task, order)
    hold(after)
    return {"order": order, "by": task.request.id}


@app.task(base=Guarded, bind=True, idempotency=Policy(wait=Backoff(base_s=2.5, cap_s=2.5)))
def ship(task: Any, order: str, after: str) -> str:
    """Have an effect, and be held; a copy comes back after three seconds, which RabbitMQ makes of two and one."""
    effect(task, order)
    hold(after)
    return order


@app.task(base=Guarded, bind=True, idempotency=Policy(key=("order",), on_unknown=PARK, wait=QUICK))
def pay(task: Any, order: str, after: str = "") -> str:
    """As `charge`, but once at most; one key an order."""
    effect(task, order)
    hold(after)
    return order


@app.task(
    base=Guarded,
    bind=True,
    max_retries=0,
    idempotency=Policy(key=("order",), on_unknown=PARK, uncertain=(ValueError,), wait=QUICK),
)
def unsure(task: Any, order: str) -> None:
    """Have the effect, and raise what does not say so."""
    effect(task, order)
    raise ValueError(order)


@app.task(base=Guarded, bind=True)
def decline(task: Any, order: str) -> None:
    """Fail for good."""
    effect(task, order)
    raise Declined(order)


@app.task(base=Guarded, bind=True)
def flaky(task: Any, order: str, failures: int) -> int:
    """Fail some times, then have the effect."""
    if task.request.retries < failures:
        raise Unavailable(order)
    effect(task, order)
    return int(task.request.retries)


@app.task(base=GuardedAndAudited, bind=True)
def postponed(task: Any, order: str, *, ignores: bool) -> str:
    """Send the retry and go on to the end; the retry has the effect."""
    if task.request.retries:
        effect(task, order)
    else:
        task.retry(countdown=0, throw=False)
        if ignores:
            raise Ignore(order)
    return order


@app.task(base=Guarded, bind=True)
def broken(task: Any, order: str, marker: str) -> str:
    """Fail until the file `marker` is there."""
    if not Path(marker).exists():
        raise ValueError(order)
    effect(task, order)
    return order


@app.task(base=Guarded, bind=True, soft_time_limit=LIMIT_S)
def slow(task: Any, order: str) -> None:
    """Be cut short by the soft limit, after the effect."""
    effect(task, order)
    Event().wait(30)


@app.task(base=Mortal, bind=True)
def endless(task: Any, order: str) -> None:
    """Have the effect, and run until it is killed."""
    effect(task, order)
    Event().wait(60)


@app.task(base=Mortal, bind=True, time_limit=LIMIT_S)
def stuck(task: Any, order: str) -> None:
    """Be killed at the hard limit, after the effect."""
    effect(task, order)
    Event().wait(30)


@app.task(base=Guarded, bind=True)
def rejecting(task: Any, order: str, marker: str) -> str:
    """Reject the message until the file `marker` is there."""
    if not Path(marker).exists():
        Path(marker).touch()
        raise Reject(order, requeue=True)
    effect(task, order)
    return order


@app.task(base=Guarded, bind=True)
def ignoring(task: Any, order: str) -> None:
    """Have the effect and want no result."""
    effect(task, order)
    raise Ignore(order)


@app.task(base=Mortal, bind=True)
def dying(task: Any, order: str, marker: str) -> str:
    """Be killed like by the kernel, once, before the effect."""
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    effect(task, order)
    return order


@app.task(base=Guarded, bind=True, idempotency=Policy(on_store_down=FAIL_OPEN, wait=QUICK))
def careless(task: Any, order: str) -> str:
    """Run also while the store is unavailable."""
    effect(task, order)
    return order


@app.task(base=Guarded, bind=True, idempotency=Policy(result_limit=100, wait=QUICK))
def talkative(task: Any, order: str) -> str:
    """Return more than is kept."""
    effect(task, order)
    return order * 200


@app.task(base=Guarded, bind=True)
def add(task: Any, first: int, second: int) -> int:
    """For chains and chords."""
    effect(task, [first, second])
    return first + second


@app.task(base=Guarded, bind=True)
def total(task: Any, numbers: list[int]) -> int:
    """The end of a chord."""
    effect(task, numbers)
    return sum(numbers)


@app.task(base=Guarded, bind=True, idempotency=Policy(uncertain=(SoftTimeLimitExceeded, TimeoutError), wait=QUICK))
def unclear(task: Any, order: str) -> None:
    """Raise what says nothing about the effect."""
    effect(task, order)
    raise TimeoutError(order)


@app.task(base=Guarded, bind=True)
def collect(task: Any, results: list[Any]) -> int:
    """The end of a chord of anything."""
    effect(task, len(results))
    return len(results)


@app.task(base=Guarded, bind=True, idempotency=Policy(key=("order",), wait=QUICK))
def steps(task: Any, order: str, number: int) -> int:
    """Replace itself, twice, under one key."""
    effect(task, order)
    if number < 3:
        raise task.replace(task.s(order, number + 1))
    return number
