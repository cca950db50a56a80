"""Celery's request of a task in the worker: what it does with the task's message when the task has ended.

A task may have a request class of its own (`Task.Request`), and Celery documents `on_failure` and `on_timeout` as
places to override. When a message is acknowledged or rejected is decided in the middle of them, by private parts; the
hooks of `HookedRequest` stand there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from celery.utils.log import get_logger
from celery.worker import request as worker_request
from celery.worker import strategy as worker_strategy
from vine import promise

from repot.upstream.lost_process import RetryingRequest
from repot.upstream.point import Failure, Point
from repot.upstream.wrapped_errors import as_exception_info, unwrapped

if TYPE_CHECKING:
    from collections.abc import Callable

_BREAKS = "Failed tasks leave no dead letter, or tasks that succeeded or are retried leave one."

POINTS = (
    Point(
        "celery.worker.request:Request.on_failure",
        Failure.SILENT,
        _BREAKS,
        "(self, exc_info, send_failed_event=True, return_ok=False)",
        (
            "elif isinstance(exc, MemoryError):",
            "self.reject(requeue=requeue)",
            "self.acknowledge()",
            "self.reject(requeue=False)",
        ),
    ),
    Point(
        "celery.worker.request:Request.on_failure",
        Failure.SILENT,
        _BREAKS,
        contains=(
            "self._success_was_stored() if is_worker_lost else False",
            "self._retry_worker_lost(exc, exc_info):",
        ),
        since="5.7",
    ),
    Point("celery.worker.request:Request.on_timeout", Failure.LOUD, _BREAKS, "(self, soft, timeout)"),
    Point("celery.worker.request:Request.on_retry", Failure.SILENT, _BREAKS, contains=("self.acknowledge()",)),
    Point(
        "celery.worker.request:Request.cancel",
        Failure.LOUD,
        _BREAKS,
        "(self, pool, signal=None, emit_retry=True)",
        since="5.6",
    ),
    Point("celery.worker.request:Request.cancel", Failure.LOUD, _BREAKS, "(self, pool, signal=None)", until="5.6"),
    Point(
        "celery.worker.request:Request.acknowledge",
        Failure.SILENT,
        _BREAKS,
        "(self)",
        ("if not self.acknowledged:", "self._on_ack(logger, self._connection_errors)"),
    ),
    Point(
        "celery.worker.request:Request.reject",
        Failure.SILENT,
        _BREAKS,
        "(self, requeue=False)",
        ("self._on_reject(logger, self._connection_errors, requeue)",),
    ),
    Point(
        "celery.worker.request:Request._success_was_stored",
        Failure.SILENT,
        _BREAKS,
        "(self)",
        ("return meta",),
        since="5.7",
    ),
    Point(
        "celery.worker.request:Request._retry_worker_lost",
        Failure.SILENT,
        _BREAKS,
        "(self, exc, exc_info)",
        since="5.7",
    ),
    Point("celery.worker.request:Request._already_cancelled", Failure.LOUD, _BREAKS),
    Point("celery.worker.request:Request._already_revoked", Failure.LOUD, _BREAKS),
    Point("celery.worker.request:Request.message", Failure.LOUD, _BREAKS, contains=("return self._message",)),
    Point("celery.worker.request:Request.request_dict", Failure.LOUD, _BREAKS, contains=("return self._request_dict",)),
    Point(
        "celery.worker.request:Request.__init__",
        Failure.LOUD,
        _BREAKS,
        contains=("self._connection_errors = connection_errors or ()",),
    ),
    Point(
        "celery.worker.strategy:default",
        Failure.SILENT,
        "A message over its delivery limit is refused as another task.",
        contains=(
            "if body is None and 'args' not in message.payload: body, headers, decoded, utc = (",
            "message.body, message.headers, False, app.uses_utc_timezone(),",
            "message, on_ack=ack, on_reject=reject, app=app, hostname=hostname,",
        ),
    ),
    Point(
        "celery.worker.consumer.consumer:Consumer.create_task_handler",
        Failure.SILENT,
        "A message over its delivery limit is settled outside of the event loop.",
        contains=("call_soon_ack = self.call_soon_ack",),
        since="5.7",
    ),
    Point(
        "celery.worker.consumer.consumer:Consumer.create_task_handler",
        Failure.SILENT,
        "A message over its delivery limit is settled outside of the event loop.",
        contains=("call_soon = self.call_soon",),
        until="5.7",
    ),
    Point("celery.worker.strategy:hybrid_to_proto2", Failure.LOUD, _BREAKS, "(message, body)"),
    Point(
        "celery.worker.strategy:proto1_to_proto2",
        Failure.LOUD,
        _BREAKS,
        "(message, body)",
    ),
    Point("celery.app.task:Task.Request", Failure.SILENT, _BREAKS),
)

celery_log = get_logger(worker_request.__name__)
# the stubs do not know what they keep
_Request: Any = worker_request.Request
_strategy: Any = worker_strategy

#: What `Task.Request` is for a task that defines none.
_STOCK = ("celery.worker.request:Request", _Request)


#: Celery's request, with what it does since 5.7 about a process that was lost.
_Base: Any = _Request if hasattr(_Request, "_retry_worker_lost") else RetryingRequest


class HookedRequest(_Base):  # type: ignore[misc,unused-ignore]
    """Celery's request, with hooks for what it finds out while it handles a failure."""

    #: Whether `use_request` has made this class.
    is_given: ClassVar[bool] = False

    def on_stored_success(self) -> None:
        """Hook: the process was lost after it had stored the task's success."""

    def on_lost(self, retry: Callable[[], bool]) -> bool:
        """Hook: the process was lost, and `retry()` sends the task again; return whether it did."""
        return retry()

    @property
    def is_withdrawn(self) -> bool:
        """Whether the worker itself has cancelled or revoked the task."""
        return bool(self._already_cancelled or self._already_revoked)

    @property
    def retries(self) -> int:
        """How often the task was retried, as its message says."""
        stated = self.request_dict.get("retries")
        return stated if isinstance(stated, int) else 0

    def on_failure(self, exc_info: Any, *arguments: Any, **options: Any) -> Any:
        """Handle a failure; Celery ends the worker for a MemoryError, as NumPy's for one array that is too large."""
        raised = unwrapped(exc_info.exception)
        if isinstance(raised, MemoryError):
            exc_info = as_exception_info(RuntimeError(f"MemoryError: {raised}"))
        return super().on_failure(exc_info, *arguments, **options)

    def fail(self, error: Exception) -> None:
        """Store `error` as the result of a task that did not run."""
        _Base.on_failure(self, as_exception_info(error))

    def settle_message(self, *, acknowledge: bool) -> None:
        """Acknowledge or requeue the message, whatever Celery has noted about it; for the event loop."""
        if acknowledge:
            self.message.ack_log_error(celery_log, self._connection_errors)
        else:
            self.message.reject_log_error(celery_log, self._connection_errors, requeue=True)

    def _success_was_stored(self) -> Any:
        stored = super()._success_was_stored()
        if stored:
            self.on_stored_success()
        return stored

    def _retry_worker_lost(self, exc: BaseException, exc_info: Any) -> bool:
        return self.on_lost(lambda: bool(_Base._retry_worker_lost(self, exc, exc_info)))


def use_request(app: Any, kind: type[HookedRequest], **attributes: Any) -> None:
    """Give every task of an application that has no request class of its own a subclass of `kind`.

    `attributes` are the subclass' own; one that an earlier call has given is replaced.
    """
    own = type("Request", (kind,), {**attributes, "is_given": True, "__module__": kind.__module__})
    for task in app.tasks.values():
        if task.Request in _STOCK or getattr(task.Request, "is_given", False):
            task.Request = own


def retry_lost_processes(app: Any) -> None:
    """Let tasks without a request class of their own be retried when their process was lost; before 5.7, of repot."""
    if _Base is not _Request:
        use_request(app, HookedRequest)


def request_of(c: Any, task: Any, message: Any) -> Any:
    """Return the request of a message, made as Celery's default strategy does; `c` is Celery's Consumer."""
    payload = message.payload
    if "args" in payload:
        body, headers, decoded, utc = _strategy.hybrid_to_proto2(message, payload)
    elif "task" not in message.headers:
        body, headers, decoded, utc = _strategy.proto1_to_proto2(message, payload)
    else:
        body, headers, decoded, utc = message.body, message.headers, False, c.app.uses_utc_timezone()
    soon = getattr(c, "call_soon_ack", None) or c.call_soon
    return task.Request(
        message,
        on_ack=promise(soon, (message.ack_log_error,)),
        on_reject=promise(soon, (message.reject_log_error,)),
        app=c.app,
        hostname=c.hostname,
        eventer=c.event_dispatcher,
        task=task,
        connection_errors=c.connection_errors,
        body=body,
        headers=headers,
        decoded=decoded,
        utc=utc,
    )
