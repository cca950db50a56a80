"""Let a pool ask before it starts a task.

Bug of Celery: a pool of threads keeps tasks that it has not started in a queue of its own when the connection is lost,
although their messages go back to the broker (`Consumer.on_close` drops what it holds, and `ThreadPoolExecutor` knows
nothing of that): each of them runs here and where it is delivered next. A prefork pool has no such queue: what waits is
handed to a process when that is free, and is asked for then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.exceptions import TaskRevokedError
from celery.worker import state
from celery.worker.request import Request

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Callable

_TWICE = "Threads and greenlets of a worker run what was given back when the connection was lost."

POINTS = (
    Point(
        "celery.concurrency.base:apply_target",
        Failure.SILENT,
        _TWICE,
        contains=("accept_callback(pid or getpid(), monotonic())", "ret = target(*args, **kwargs)", "callback(ret)"),
    ),
    Point(
        "celery.concurrency.base:BasePool.apply_async",
        Failure.SILENT,
        _TWICE,
        contains=("return self.on_apply(target, args, kwargs,",),
    ),
    Point(
        "celery.worker.request:Request.execute_using_pool",
        Failure.SILENT,
        _TWICE,
        contains=("accept_callback=self.on_accepted,", "callback=self.on_success,"),
    ),
    Point(
        "celery.worker.worker:WorkController._process_task",
        Failure.SILENT,
        "A worker whose message was handed out again has one process less.",
        contains=("except TaskRevokedError:", "self._quick_release()"),
    ),
    Point("celery.worker.state:task_ready", Failure.LOUD, _TWICE),
    Point("celery.worker.state:reserved_requests", Failure.LOUD, _TWICE),
)

# the stubs do not know it
_state: Any = state

_NOT_STARTED = object()


def ask_before_start(pool: Any, may_start: Callable[[Any], bool]) -> None:
    """Let a pool that runs tasks in this process start those whose request `may_start` lets; from any thread.

    A request that it does not let is forgotten, and its message is rejected with requeue if the worker still counts it.
    """
    apply = pool.on_apply

    def on_apply(target: Any, args: Any, kwargs: Any, *, callback: Any, accept_callback: Any, **more: Any) -> Any:
        request = _request_of(accept_callback)
        if request is None:
            return apply(target, args, kwargs, callback=callback, accept_callback=accept_callback, **more)
        starts = []

        def accept(*given: Any) -> None:
            if may_start(request):
                starts.append(True)
                accept_callback(*given)
            else:
                _forget(request)

        def run(*given: Any, **named: Any) -> Any:
            return target(*given, **named) if starts else _NOT_STARTED

        def end(found: Any) -> None:
            if found is not _NOT_STARTED:
                callback(found)

        return apply(run, args, kwargs, callback=end, accept_callback=accept, **more)

    pool.on_apply = on_apply


def ask_before_handing_over(pool: Any, may_start: Callable[[Any], bool]) -> None:
    """Let a prefork pool hand over to its processes the tasks whose request `may_start` lets; the others are forgotten.

    For the event loop.
    """
    apply = pool.on_apply

    def on_apply(*arguments: Any, accept_callback: Any = None, **more: Any) -> Any:
        request = _request_of(accept_callback)
        if request is not None and not may_start(request):
            _forget(request)
            # so Celery frees the place of the process that was taken for it
            message = f"the message of {request.id} was handed out again"
            raise TaskRevokedError(message)
        return apply(*arguments, accept_callback=accept_callback, **more)

    pool.on_apply = on_apply


def _request_of(accept_callback: Any) -> Any:
    """Return the request whose method Celery gives to a pool; None for an application's own, as of celery-batches."""
    request = getattr(accept_callback, "__self__", None)
    return request if isinstance(request, Request) else None


def _forget(request: Any) -> None:
    # after a lost connection the consumer has forgotten it, and its id may be that of the next delivery
    if request in _state.reserved_requests:
        _state.task_ready(request)
        request.reject(requeue=True)
