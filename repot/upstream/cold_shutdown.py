"""A cold shutdown that meets a task which has just begun.

Bug of Celery: `on_cold_shutdown` (`celery/apps/worker.py`) cancels the tasks that the worker knows to be running, and
then waits for its pool. A process of the pool says that it has taken a task, and begins; if SIGQUIT comes before the
event loop has read that, the task is not cancelled, and the worker waits for its end, however long it runs. For the
same reason a soft shutdown does not give such a task its time.

The process is killed, and what it says is still read: a message that is acknowledged early must not come back. SIGQUIT
may also come while the event loop reads just that; the pool then stops in the middle of it, and only the end of the
process ends the wait.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from billiard.common import TERM_SIGNAL
from billiard.pool import ApplyResult

from repot.logs import get_logger
from repot.upstream.point import Failure, Point
from repot.upstream.worker_state import active_requests, reserved_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = get_logger(__name__)

_BREAKS = "A worker that gets SIGQUIT as a task begins waits for the end of that task."

POINTS = (
    Point(
        "celery.apps.worker:on_cold_shutdown",
        Failure.SILENT,
        _BREAKS,
        contains=("worker.wait_for_soft_shutdown()", "worker.consumer.pool.stop()"),
        since="5.5",
    ),
    Point(
        "celery.apps.worker:on_cold_shutdown",
        Failure.SILENT,
        _BREAKS,
        contains=("worker.consumer.cancel_active_requests()",),
        since="5.6",
    ),
    Point(
        "celery.worker.consumer.consumer:Consumer.cancel_active_requests",
        Failure.SILENT,
        _BREAKS,
        "(self)",
        ("tuple(filter(should_cancel, active_requests))",),
        since="5.6",
    ),
    Point(
        "celery.apps.worker:on_cold_shutdown",
        Failure.SILENT,
        _BREAKS,
        contains=("worker.consumer.cancel_all_unacked_requests()",),
        since="5.5",
        until="5.6",
    ),
    Point(
        "celery.worker.consumer.consumer:Consumer.cancel_all_unacked_requests",
        Failure.SILENT,
        _BREAKS,
        "(self)",
        ("tuple(filter(should_cancel, active_requests))",),
        since="5.5",
        until="5.6",
    ),
    Point(
        "celery.worker.worker:WorkController.wait_for_soft_shutdown",
        Failure.SILENT,
        "A soft shutdown gives no time to a task that has just begun.",
        "(self)",
        ("if app.conf.worker_enable_soft_shutdown_on_idle:",),
        since="5.5",
    ),
    Point(
        "celery.worker.request:Request.execute_using_pool",
        Failure.SILENT,
        _BREAKS,
        contains=("accept_callback=self.on_accepted,", "self._apply_result = maybe(ref, result)"),
    ),
    Point(
        "billiard.pool:ApplyResult.__init__", Failure.LOUD, _BREAKS, contains=("_accept_callback = accept_callback",)
    ),
    Point(
        "billiard.pool:ApplyResult._ack",
        Failure.SILENT,
        _BREAKS,
        contains=("self._accept_callback(pid, time_accepted)",),
    ),
)


#: What a cold shutdown calls: in Celery 5.6, and in 5.5. One of 5.4 cancels nothing: it ends the pool.
_CANCEL = ("cancel_active_requests", "cancel_all_unacked_requests")


def cancel_beginning_tasks(consumer: Any) -> None:
    """Let a worker's cold shutdown cancel the tasks that have begun without its knowledge, as soon as it knows."""
    name = next((name for name in _CANCEL if hasattr(consumer, name)), None)
    if name is None:
        return
    worker, cancel = consumer.controller, getattr(consumer, name)
    wait = worker.wait_for_soft_shutdown

    def cancel_now_and_later() -> None:
        cancel()
        for job in _beginning():
            if job._write_to is not None:
                consumer.pool.terminate_job(job._write_to.pid, TERM_SIGNAL)
            job._accept_callback = partial(_accept_and_cancel, job._accept_callback, cancel)

    def wait_for_all() -> None:
        if any(_beginning()):
            # the worker ends: nothing reads it later
            worker.app.conf.worker_enable_soft_shutdown_on_idle = True
        wait()

    setattr(consumer, name, cancel_now_and_later)
    worker.wait_for_soft_shutdown = wait_for_all


def _beginning() -> Iterator[Any]:
    """Yield the pool's jobs that a process may have taken without the worker's knowledge; of a prefork pool alone."""
    active = active_requests()
    for request in reserved_requests():
        job = request._apply_result() if request not in active and request._apply_result else None
        if isinstance(job, ApplyResult):
            yield job


def _accept_and_cancel(accept: Callable[..., None], cancel: Callable[[], None], *arguments: Any) -> None:
    """Note that a task has begun, and cancel it; what was cancelled before is not active any more."""
    accept(*arguments)
    try:
        cancel()
    except Exception:
        # billiard does not expect an error here
        log.exception("a task that had just begun was not cancelled in full")
