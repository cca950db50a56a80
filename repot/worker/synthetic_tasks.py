"""Synthetic tasks: they sleep, fail, retry or kill their process on request.

An application gets them by listing this module in its `include`.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from celery import shared_task
from celery.utils.log import get_task_logger

from repot.waiting import wait_until
from repot.worker.effects import effect_event

if TYPE_CHECKING:
    from celery import Task

log = get_task_logger(__name__)

#: A task that waits for the file `hold` continues after this many seconds.
MAX_HOLD_S = 120

#: Time limit of a task that fails, dies or retries; below RabbitMQ's consumer timeout of 30 minutes.
LONGEST_RUN_S = 1200
#: Time limit of a plain run, also one that hangs; below the default WORKER_VISIBILITY_TIMEOUT of two hours.
LONGEST_PLAIN_RUN_S = 5400


# repot: ignore[RPT110, RPT113] it has no effect worth waiting for, and shows what a broker does with a long one
@shared_task(bind=True, name="repot.run", time_limit=LONGEST_PLAIN_RUN_S)
def run(task: Task[..., Any], seconds: float = 0, hold: str = "") -> dict[str, Any]:
    """Sleep for `seconds`, at most an hour and a half; record the effect; wait until the file `hold` exists, if given.

    While it waits for `hold`, the task has had its effect and is not acknowledged yet.
    """
    Event().wait(seconds)
    _record_effect(task)
    if hold:
        wait_until(Path(hold).exists, within_s=MAX_HOLD_S, what=f"{hold} appears")
    return {"task": task.request.id, "seconds": seconds}


# repot: ignore[RPT110] it has no effect worth waiting for
@shared_task(bind=True, name="repot.fail", time_limit=LONGEST_RUN_S)
def fail(task: Task[..., Any], message: str = "failed on purpose") -> None:
    """Record the effect, then fail."""
    _record_effect(task)
    raise RuntimeError(message)


# Celery waits for default_retry_delay, by default 180 s, before it runs a lost task again
# repot: ignore[RPT110] it has no effect worth waiting for
@shared_task(bind=True, name="repot.die", time_limit=LONGEST_RUN_S, max_retries=2, default_retry_delay=1)
def die(task: Task[..., Any]) -> None:
    """Record the effect, then kill the own process, as the kernel does when memory runs out."""
    _record_effect(task)
    os.kill(os.getpid(), signal.SIGKILL)


# repot: ignore[RPT110] it has no effect worth waiting for
@shared_task(bind=True, name="repot.retry", time_limit=LONGEST_RUN_S, max_retries=10)
def retry(task: Task[..., Any], times: int = 2, countdown: float = 0) -> int:
    """Record the effect and retry `times` times; return the number of runs."""
    _record_effect(task)
    if task.request.retries < times:
        raise task.retry(countdown=countdown)
    return task.request.retries + 1


def _record_effect(task: Task[..., Any]) -> None:
    effect_event.send(sender=task.name, task_id=str(task.request.id), worker=str(task.request.hostname))
    log.info("effect of %s[%s]", task.name, task.request.id, extra={"action": "effect"})
