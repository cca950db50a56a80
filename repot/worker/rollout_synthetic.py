"""The synthetic task of a rollout: it waits for a stated time, and has one effect, in the lease store."""

from __future__ import annotations

import os
import signal
from functools import lru_cache
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Any

from repot.errors import StoreUnreachable
from repot.idempotency import TASK_ID, IdempotentTask, Policy
from repot.routing.synthetic import TASK, SyntheticTasks
from repot.upstream.app_state import state_of
from repot.upstream.pool_process import process_index
from repot.worker.rollout_store import open_rollout_store

if TYPE_CHECKING:
    from celery import Celery

    from repot.config import WorkerSettings

#: It looks so often whether it should end early.
_LOOK_S = 1.0


def add_synthetic_task(app: Celery) -> None:
    """Register the task with an application that follows a rollout; once, however often it is configured."""
    state = state_of(app)
    if state.has_synthetic_task:
        return
    state.has_synthetic_task = True

    # repot: ignore[RPT110] its length is stated, and the limits of the application hold
    @app.task(
        name=TASK,
        # Celery adds a shared task to every application of the process
        shared=False,
        base=IdempotentTask,
        idempotency=Policy(key=TASK_ID),
        bind=True,
        transient=(StoreUnreachable,),
        ignore_result=True,
        max_retries=3,
        default_retry_delay=1,
    )
    def synthetic(self: Any, *, length_s: float, kills: bool) -> None:  # noqa: ANN401 - the task
        """Wait; kill the process of the first run if asked to; have the effect."""
        tasks = _tasks_of(state_of(self.app).settings)
        is_first = tasks.begun(self.request.id) == 1
        # a pool without processes cannot lose one and go on
        if kills and is_first and process_index() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        until = monotonic() + length_s
        pause = Event()
        while (left_s := until - monotonic()) > 0 and not tasks.is_stopped():
            pause.wait(min(left_s, _LOOK_S))
        tasks.ended(self.request.id)


@lru_cache(maxsize=1)
def _tasks_of(settings: WorkerSettings) -> SyntheticTasks:
    return SyntheticTasks(open_rollout_store(settings), settings.lease_prefix, settings.rollout)
