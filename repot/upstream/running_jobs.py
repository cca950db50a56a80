"""What a pool of Celery before 5.6 forgets when its worker connects again: the tasks that run.

A broker delivers them again there, so their results are not waited for (`AsynPool.flush`). But a message that a claim
keeps is not delivered again: its task would end, and nothing would acknowledge it. Celery 5.6 forgets only what has not
been started.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from celery.concurrency.asynpool import AsynPool

from repot.upstream.point import Failure, Point, release
from repot.upstream.wrapping import wrap_once

if TYPE_CHECKING:
    from collections.abc import Callable

_BREAKS = "A task that outlives the worker's link to Redis is not acknowledged, and is delivered once more."

POINTS = (
    Point(
        "celery.concurrency.asynpool:AsynPool.flush",
        Failure.SILENT,
        _BREAKS,
        "(self)",
        ("if not self._active_writers: self._cache.clear()",),
        until="5.6",
    ),
    Point("billiard.pool:ApplyResult.ready", Failure.LOUD, _BREAKS, "(self)"),
    Point("billiard.pool:ApplyResult.accepted", Failure.LOUD, _BREAKS, "(self)"),
)


def keep_running_jobs() -> None:
    """Let the pools of this process wait for the results of what runs."""
    if release(version("celery")) < (5, 6):
        wrap_once(AsynPool, "flush", _keeping)


def _keeping(flush: Callable[[Any], None]) -> Callable[[Any], None]:
    def flush_others(pool: Any) -> None:
        running = {number: job for number, job in pool._cache.items() if job.accepted()}
        flush(pool)
        pool._cache.update((number, job) for number, job in running.items() if not job.ready())

    return flush_others
