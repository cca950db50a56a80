"""What Celery does since 5.7 with a task whose pool process was lost, for the releases before.

There the task fails and its late message is acknowledged (with `reject_on_worker_lost`, requeued without limit), also
where the process had stored the task's success. Celery 5.7 asks for that success, and has `task_retry_on_worker_lost`,
by which the task is sent again as `retry` does it (`Request._success_was_stored`, `Request._retry_worker_lost`). And
billiard since 4.3 reports the exit of a process before its loss, as the SystemExit that those releases take for an
error of the task.
"""

from __future__ import annotations

from typing import Any

from billiard.common import human_status
from billiard.exceptions import WorkerLostError
from celery import signals, states
from celery.exceptions import Retry
from celery.utils.log import get_logger
from celery.utils.saferepr import saferepr
from celery.worker import request as worker_request
from celery.worker import state

from repot.upstream.point import Failure, Point
from repot.upstream.wrapped_errors import as_exception_info, unwrapped

_BREAKS = "A task whose process was killed is lost, or fails although it has succeeded."

POINTS = (
    Point(
        "celery.worker.request:Request.on_failure",
        Failure.SILENT,
        _BREAKS,
        "(self, exc_info, send_failed_event=True, return_ok=False)",
        ("is_worker_lost = isinstance(exc, WorkerLostError)", "if self.task.acks_late: reject = ("),
        until="5.7",
    ),
    Point("celery.worker.request:Request._already_cancelled", Failure.LOUD, _BREAKS, until="5.7"),
    Point("celery.worker.state:should_terminate", Failure.SILENT, _BREAKS, until="5.7"),
    Point("celery.worker.state:task_ready", Failure.LOUD, _BREAKS, until="5.7"),
    Point(
        "celery.backends.base:KeyValueStoreBackend._get_task_meta_for",
        Failure.SILENT,
        _BREAKS,
        "(self, task_id)",
        until="5.7",
    ),
)

log = get_logger(worker_request.__name__)
_Request: Any = worker_request.Request
_state: Any = state


class RetryingRequest(_Request):  # type: ignore[misc]
    """Celery's request, with what 5.7 does about a lost process."""

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:  # noqa: FBT001, FBT002 - Celery's signature
        """Handle a failure; of a lost process, look for its result and send the task again first."""
        error = unwrapped(exc_info.exception)
        if isinstance(error, SystemExit | KeyboardInterrupt):
            if self._already_cancelled or self._already_revoked:
                # by our own signal: the message goes back
                _state.task_ready(self)
                return None
            exc_info = as_exception_info(WorkerLostError(f"Worker exited prematurely: {_status(error)}."))
            error = unwrapped(exc_info.exception)
        if isinstance(error, WorkerLostError) and self.task.acks_late and _is_ending():
            # a cold shutdown of 5.4 kills what runs: the message goes back with the connection
            _state.task_ready(self)
            self.on_given_back()
            return None
        if isinstance(error, WorkerLostError) and (self._has_succeeded(error) or self._is_retried(error, exc_info)):
            _state.task_ready(self)
            return None
        return super().on_failure(exc_info, send_failed_event, return_ok)

    def on_given_back(self) -> None:
        """Hook: the worker ends, and the message goes back."""

    def _has_succeeded(self, error: BaseException) -> bool:
        stored = self._success_was_stored()
        if not stored:
            return False
        log.warning("Task %s[%s] succeeded before the worker was lost: %r", self.name, self.id, error)
        if self.task.acks_late:
            self.acknowledge()
        shown = saferepr(stored.get("result"), self.task.resultrepr_maxsize)
        self.send_event("task-succeeded", result=shown, runtime=None)
        return True

    def _is_retried(self, error: Exception, exc_info: Any) -> bool:
        limit = self.task.max_retries
        if not _retries_lost_processes(self.task) or (limit is not None and self._context.retries >= limit):
            return False
        return bool(self._retry_worker_lost(error, exc_info))

    def _success_was_stored(self) -> Any:
        backend = self.task.backend
        if self.ignore_result or backend.as_uri() == "rpc://":
            return False
        try:
            stored = backend._get_task_meta_for(self.id)
        except Exception:  # noqa: BLE001 - without an answer it is a failure, as ever
            return False
        return stored if stored["status"] == states.SUCCESS else False

    def _retry_worker_lost(self, exc: Exception, exc_info: Any) -> bool:
        task, context = self.task, self._context
        delay = task.default_retry_delay
        try:
            task.signature_from_request(context, countdown=delay, retries=context.retries + 1).apply_async()
        except Exception:
            log.exception("Failed to retry task %s[%s] after worker was lost", self.name, self.id)
            return False
        if self.store_errors:
            task.backend.mark_as_retry(self.id, exc, exc_info.traceback, request=context)
        if task.acks_late:
            self.acknowledge()
        self.send_event("task-retried", exception=repr(exc), traceback=str(exc_info.traceback))
        reason = Retry(exc=exc, when=delay)
        task.request_stack.push(context)
        try:
            task.on_retry(exc, self.id, self.args, self.kwargs, exc_info)
            signals.task_retry.send(task, request=context, reason=reason, einfo=exc_info)
        finally:
            task.request_stack.pop()
        log.info("Task %s[%s] retry: %s", self.name, self.id, reason)
        return True


def _is_ending() -> bool:
    """Return whether the worker ends without waiting; Celery stores an exit code, which may be 0."""
    return _state.should_terminate is not None and _state.should_terminate is not False


def _retries_lost_processes(task: Any) -> bool:
    """Return whether a task, or else the configuration, says so: neither is an option of these releases."""
    own = getattr(task, "retry_on_worker_lost", None)
    return bool(task.app.conf.get("task_retry_on_worker_lost") if own is None else own)


def _status(error: BaseException) -> str:
    if not isinstance(error, SystemExit):
        return type(error).__name__
    code = error.code
    return str(human_status(0 if code is None else code if isinstance(code, int) else 1))
