"""What a worker does with the message of a task: Celery's own request, but a final failure leaves a letter."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from billiard.einfo import ExceptionInfo
from celery.exceptions import TimeLimitExceeded
from celery.utils.log import get_logger
from celery.worker import request as worker_request
from celery.worker import strategy as worker_strategy
from vine import promise

from repot.deadletter import letter
from repot.deadletter.judging import cause, name_of, reason_of, text_of, unwrapped
from repot.deadletter.letter import Death

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.worker.burying import Burial

celery_log = get_logger(worker_request.__name__)
# the stubs do not know what they keep
_Request: Any = worker_request.Request
_strategy: Any = worker_strategy

#: How a task says that it has no request class of its own.
CELERYS_OWN = ("celery.worker.request:Request", _Request)


class BuryingRequest(_Request):  # type: ignore[misc,unused-ignore]
    """Writes a letter where Celery would acknowledge or reject the message of a task that failed for good.

    While a failure is handled, the death is known; whoever acknowledges or rejects
    the message then has a letter written instead, and the message is acknowledged
    once the broker has it. What Celery finds out meanwhile (that the task succeeded
    after all, or is retried) takes the death back.
    """

    burial: ClassVar[Burial]
    _death: Death | None = None
    _is_over = False
    _is_cancelled = False

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:  # noqa: ANN401, FBT001, FBT002 - Celery's signature
        """The task raised, or its process is gone."""
        traceback = exc_info.traceback
        with self._dying(exc_info.exception, traceback if isinstance(traceback, str) else ""):
            return super().on_failure(exc_info, send_failed_event, return_ok)

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001 - Celery's signature
        """A time limit has passed; after the hard one there is no task any more."""
        if soft:
            super().on_timeout(soft, timeout)
            return
        with self._dying(TimeLimitExceeded(timeout), ""):
            super().on_timeout(soft, timeout)

    def refuse(self, error: Exception) -> None:
        """End a task that must not run: it has failed with `error`, its caller hears of it, its message is a letter."""
        with self._dying(error, ""):
            super().on_failure(_as_failure(error))
            if not self.acknowledged:
                # Celery has acknowledged a task early by the time it fails
                self.acknowledge()

    def cancel(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - Celery's signature
        """End the run, as a cold shutdown does: the message goes back, and no worker died of it."""
        if not self._is_cancelled:
            self._is_cancelled = True
            self.burial.return_([self])
        super().cancel(*arguments, **options)

    def acknowledge(self) -> None:
        """Acknowledge, but for a dead task: that has a letter written first."""
        if self.acknowledged or not self._bury():
            super().acknowledge()

    def reject(self, requeue: bool = False) -> None:  # noqa: FBT001, FBT002 - Celery's signature
        """Give the message back, or have a letter written."""
        if requeue:
            self._death, self._is_over = None, True
        elif not self.acknowledged:
            self._death = self._death or self._said(letter.REJECTED)
            if self._bury():
                self.send_event("task-rejected", requeue=False)
                return
        super().reject(requeue)

    def _success_was_stored(self) -> Any:  # noqa: ANN401
        stored = super()._success_was_stored()
        if stored:
            self._death = None
        return stored

    def _retry_worker_lost(self, exc: BaseException, exc_info: Any) -> bool:  # noqa: ANN401
        death, self._death = self._death, None
        retried = bool(super()._retry_worker_lost(exc, exc_info))
        if not retried:
            self._death = death
        return retried

    @contextmanager
    def _dying(self, raised: BaseException, traceback: str) -> Iterator[None]:
        """Know the death while Celery handles a failure; a message that was acknowledged early has its letter after."""
        self._death = self._judged(raised, traceback)
        try:
            yield
            if self._death is not None and self.acknowledged:
                self._bury(settled=True)
        finally:
            self._death = None

    def _judged(self, raised: BaseException, traceback: str) -> Death | None:
        if self._is_over or self._already_cancelled or self._already_revoked:
            return None
        try:
            reason = reason_of(raised, self.task, self._retries)
            if reason is None:
                return None
            exception = cause(raised)
            return self._said(reason, name_of(exception), text_of(exception), traceback)
        except Exception:  # noqa: BLE001 - in Celery's callback: it would leave the message unacknowledged for ever
            celery_log.exception("nobody can tell why a task is dead")
            return self._said(letter.FAILED, type(unwrapped(raised)).__name__, "", traceback)

    def _said(self, reason: str, exception: str = "", message: str = "", traceback: str = "") -> Death:
        return Death(reason, "", exception=exception, message=message, traceback=traceback, attempts=self._retries + 1)

    @property
    def _retries(self) -> int:
        stated = self._request_dict.get("retries")
        return stated if isinstance(stated, int) else 0

    def _bury(self, *, settled: bool = False) -> bool:
        """Have the letter written that is due; False if there is none, and the message is Celery's to settle."""
        death, self._death = self._death, None
        if death is None or self._is_over:
            return False
        if not self.burial.bury(self._message, death, None if settled else self._settle):
            return False
        # for whoever asks before the letter is safe: this is taken care of
        self.acknowledged = self._is_over = True
        return True

    def _settle(self, written: bool) -> None:  # noqa: FBT001 - a callback
        """In the event loop: the letter is safe, or cannot be written."""
        if written:
            self._message.ack_log_error(celery_log, self._connection_errors)
        else:
            self._message.reject_log_error(celery_log, self._connection_errors, requeue=True)


def _as_failure(error: Exception) -> Any:  # noqa: ANN401 - billiard's ExceptionInfo
    """Raise and catch an error: billiard takes none without a traceback."""

    def fail() -> None:
        raise error

    try:
        fail()
    except Exception:  # noqa: BLE001 - whatever was given
        return ExceptionInfo()


def request_of(c: Any, task: Any, message: Any) -> Any:  # noqa: ANN401 - celery's Consumer and Task, kombu's Message
    """Make the request of a message as Celery's default strategy does (`celery/worker/strategy.py`)."""
    payload = message.payload
    if "args" in payload:
        body, headers, decoded, utc = _strategy.hybrid_to_proto2(message, payload)
    elif "task" not in message.headers:
        body, headers, decoded, utc = _strategy.proto1_to_proto2(message, payload)
    else:
        body, headers, decoded, utc = message.body, message.headers, False, c.app.uses_utc_timezone()
    return task.Request(
        message,
        on_ack=promise(c.call_soon_ack, (message.ack_log_error,)),
        on_reject=promise(c.call_soon_ack, (message.reject_log_error,)),
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
