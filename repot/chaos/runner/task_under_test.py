"""The task under test, plain and guarded: it works, has its effect and returns."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from celery import shared_task

from repot.chaos.instruments.failpoints import Failpoints, Phase
from repot.chaos.instruments.journal import EFFECT, Journal
from repot.chaos.runner.target_task import GUARDED, GUARDED_RERUN, IN_TRANSACTION, PLAIN
from repot.config import load
from repot.idempotency import PARK, RERUN, TASK_ID, Backoff, IdempotentTask, Policy
from repot.worker.synthetic_tasks import LONGEST_RUN_S

if TYPE_CHECKING:
    from celery import Task

#: Retries soon, and parks the task when the outcome is unknown.
_PARKS = Policy(key=TASK_ID, on_unknown=PARK, wait=Backoff(base_s=0.5, cap_s=1))
_RERUNS = replace(_PARKS, on_unknown=RERUN)

#: Options of each of these tasks. The delay is that before a task whose process was killed runs again, if it does.
_OPTIONS: dict[str, Any] = {"bind": True, "time_limit": LONGEST_RUN_S, "max_retries": 2, "default_retry_delay": 1}


@shared_task(name=PLAIN, **_OPTIONS)
def plain(task: Task[..., Any], seconds: float = 0, retries: int = 0, *, deadly: bool = False) -> str:
    """Retry `retries` times; work for `seconds`; record the effect.

    With `deadly`, kill the process instead, as the kernel does when memory runs out.
    """
    return _work(task, seconds, retries, deadly=deadly)


@shared_task(base=IdempotentTask, name=GUARDED, idempotency=_PARKS, **_OPTIONS)
def guarded(task: Task[..., Any], seconds: float = 0, retries: int = 0, *, deadly: bool = False) -> str:
    """Do the same under a lease."""
    return _work(task, seconds, retries, deadly=deadly)


@shared_task(base=IdempotentTask, name=GUARDED_RERUN, idempotency=_RERUNS, **_OPTIONS)
def guarded_rerun(task: Task[..., Any], seconds: float = 0, retries: int = 0, *, deadly: bool = False) -> str:
    """Do the same under a lease, and run again when the outcome is unknown."""
    return _work(task, seconds, retries, deadly=deadly)


@shared_task(base=IdempotentTask, name=IN_TRANSACTION, idempotency=_RERUNS, **_OPTIONS)
def in_transaction(task: IdempotentTask, seconds: float = 0, retries: int = 0, *, deadly: bool = False) -> str:
    """Do the same under a lease, and commit the effect together with the outcome."""
    from repot.chaos.instruments.effect_table import write_effect

    failpoints, name, worker = _begin(task, seconds, retries, deadly=deadly)
    with task.transaction() as session:
        write_effect(session, worker, name)
        # not committed: with the process the effect dies as well
        failpoints.reach(Phase.AFTER_EFFECT, name, worker)
        task.record_result(name)
    return name


def _work(task: Task[..., Any], seconds: float, retries: int, *, deadly: bool) -> str:
    failpoints, name, worker = _begin(task, seconds, retries, deadly=deadly)
    failpoints.journal.write(EFFECT, worker, name)
    failpoints.reach(Phase.AFTER_EFFECT, name, worker)
    return name


def _begin(task: Task[..., Any], seconds: float, retries: int, *, deadly: bool) -> tuple[Failpoints, str, str]:
    """Do everything before the effect; return the failpoints, and the names of the task and its worker."""
    path = load().journal
    assert path is not None, "the task under test runs only in experiments"
    failpoints = Failpoints(Journal(Path(path)))
    name, worker = str(task.request.id), str(task.request.hostname)
    failpoints.reach(Phase.RUNNING, name, worker)
    if task.request.retries < retries:
        raise task.retry(countdown=0)
    Event().wait(seconds)
    if deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    return failpoints, name, worker
