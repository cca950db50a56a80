"""Celery's signal `task_failure`, once for each failed task.

Bug of Celery: for a task killed at its hard time limit 5.7 sends the signal twice, when it kills the process
(`Request.on_timeout` in `celery/worker/request.py`) and when the pool reports the loss (`Request.on_failure`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from billiard.exceptions import TimeLimitExceeded
from celery.worker.request import Request

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Callable

_BREAKS = "A task killed at its hard time limit counts as two failures, or as none."

POINTS = (
    Point(
        "celery.worker.request:Request.on_timeout",
        Failure.SILENT,
        _BREAKS,
        contains=("exc = TimeLimitExceeded(timeout)", "signals.task_failure.send("),
        since="5.7",
    ),
    Point(
        "celery.worker.request:Request.on_failure", Failure.SILENT, _BREAKS, contains=("signals.task_failure.send(",)
    ),
    Point("billiard.exceptions:TimeLimitExceeded", Failure.LOUD, _BREAKS),
)

_SENDS_TWICE = "task_failure" in Request.on_timeout.__code__.co_names

#: Tasks whose second signal is awaited at most: it may never come.
_MAX_KILLED = 1000


def once_a_failure(call: Callable[[Any, str], None]) -> Callable[..., None]:
    """Return a receiver of `task_failure` that calls `call(task, id)` for each task that fails, once."""
    killed: deque[str] = deque(maxlen=_MAX_KILLED)

    def failed(sender: Any, task_id: str, exception: object, **_: Any) -> None:
        if _SENDS_TWICE and isinstance(exception, TimeLimitExceeded):
            if task_id in killed:
                killed.remove(task_id)
                return
            killed.append(task_id)
        call(sender, task_id)

    return failed
