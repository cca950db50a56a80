"""The task at which faults are aimed, plain and guarded: it works, has its effect and returns."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from celery import shared_task

from repot.chaos.target import GUARDED, PLAIN, RERUN_IN_DOUBT
from repot.config import load
from repot.idempotency import PARK, RERUN, TASK_ID, Backoff, IdempotentTask, Policy
from repot.worker.gates import Gates, Phase
from repot.worker.journal import EFFECT, Journal
from repot.worker.tasks import LONGEST_RUN_S

if TYPE_CHECKING:
    from celery import Task

#: Comes back soon, and is set aside where nobody can know whether the effect happened.
_PARKS = Policy(key=TASK_ID, on_unknown=PARK, wait=Backoff(base_s=0.5, cap_s=1))
_RERUNS = replace(_PARKS, on_unknown=RERUN)

#: A task whose process was killed runs again after so many seconds, where it does.
_AGAIN_AFTER_S = 1


@shared_task(bind=True, name=PLAIN, time_limit=LONGEST_RUN_S, max_retries=2, default_retry_delay=_AGAIN_AFTER_S)
def plain(task: Task[..., Any], seconds: float = 0, retries: int = 0, *, deadly: bool = False) -> str:
    """Ask for another run `retries` times; work for `seconds`; have the effect.

    With `deadly`, kill the process instead, as the kernel does when memory runs out.
    """
    return _work(task, seconds, retries, deadly=deadly)


@shared_task(
    bind=True,
    base=IdempotentTask,
    name=GUARDED,
    time_limit=LONGEST_RUN_S,
    max_retries=2,
    default_retry_delay=_AGAIN_AFTER_S,
    idempotency=_PARKS,
)
def guarded(task: Task[..., Any], seconds: float = 0, retries: int = 0, *, deadly: bool = False) -> str:
    """Do the same under a claim."""
    return _work(task, seconds, retries, deadly=deadly)


@shared_task(
    bind=True,
    base=IdempotentTask,
    name=RERUN_IN_DOUBT,
    time_limit=LONGEST_RUN_S,
    max_retries=2,
    default_retry_delay=_AGAIN_AFTER_S,
    idempotency=_RERUNS,
)
def rerun_in_doubt(task: Task[..., Any], seconds: float = 0, retries: int = 0, *, deadly: bool = False) -> str:
    """Do the same under a claim, and again where nobody knows whether it was done."""
    return _work(task, seconds, retries, deadly=deadly)


def _work(task: Task[..., Any], seconds: float, retries: int, *, deadly: bool) -> str:
    path = load().journal
    assert path is not None, "the subject runs in experiments alone"
    journal = Journal(Path(path))
    gates = Gates(journal)
    name, worker = str(task.request.id), str(task.request.hostname)
    gates.arrive(Phase.RUNNING, name, worker)
    if task.request.retries < retries:
        raise task.retry(countdown=0)
    Event().wait(seconds)
    if deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    journal.write(EFFECT, worker, name)
    gates.arrive(Phase.AFTER_EFFECT, name, worker)
    return name
