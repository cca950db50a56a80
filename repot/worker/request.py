"""Celery's request of a task, which dead-letters the message when the task fails for good."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from celery.exceptions import Reject, TimeLimitExceeded

from repot.deadletter.classify import cause, name_of, reason_of, text_of
from repot.deadletter.dead_letter import Death
from repot.deadletter.reason import Reason
from repot.logs import get_logger
from repot.telemetry.provider import context_of_sender
from repot.upstream.run_end import has_run_to_its_end
from repot.upstream.task_request import HookedRequest
from repot.upstream.wrapped_errors import unwrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.worker.dead_lettering import DeadLettering

log = get_logger(__name__)

#: What an exception is taken for that does not say more of itself.
_RAISED = (Reason.FAILED, Reason.RETRIES_EXHAUSTED)


class DeadLetteringRequest(HookedRequest):
    """Writes a dead letter where Celery would acknowledge or reject the message of a task that failed for good.

    While Celery handles a failure, `_death` is set; an acknowledgement or rejection of
    the message then writes a dead letter instead, and the message is acknowledged once
    the broker has that. If Celery finds meanwhile that the task succeeded after all, or
    retries it, `_death` is cleared.
    """

    dead_lettering: ClassVar[DeadLettering]
    _death: Death | None = None
    _is_settled = False
    #: Whether Celery handles a failure that is no `Reject`: a requeued message then belongs to a process that died.
    _has_failed = False

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - Celery's
        """Note the request: a task's own strategy, as that of celery-batches, tells Celery nothing of what it keeps."""
        super().__init__(*arguments, **options)
        self.dead_lettering.received.add(self)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:  # noqa: ANN401, FBT001, FBT002 - Celery's signature
        """Handle an exception of the task, or the loss of its process."""
        traceback = exc_info.traceback
        text = traceback if isinstance(traceback, str) else ""
        with context_of_sender(self.request_dict), self._dying(exc_info.exception, text):
            return super().on_failure(exc_info, send_failed_event, return_ok)

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001 - Celery's signature
        """Handle an exceeded time limit; the hard one ends the task."""
        dying = nullcontext() if soft else self._dying(TimeLimitExceeded(timeout), "")
        with context_of_sender(self.request_dict), dying:
            super().on_timeout(soft, timeout)

    def refuse(self, error: Exception) -> None:
        """Fail a task that must not run: store `error` as its result and dead-letter its message."""
        with self._dying(error, ""):
            self.fail(error)
            if not self.acknowledged:
                # Celery has acknowledged a task early by the time it fails
                self.acknowledge()

    def cancel(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - Celery's signature
        """Cancel the run, as a cold shutdown does: the message goes back, and does not count as a worker's death."""
        self.dead_lettering.note_returned([self])
        super().cancel(*arguments, **options)

    def on_given_back(self) -> None:
        """Note that the message of a killed run goes back, which is no worker's death."""
        self.dead_lettering.note_returned([self])

    def acknowledge(self) -> None:
        """Acknowledge the message; after a final failure write a dead letter first."""
        if self.acknowledged or not self._dead_letter():
            super().acknowledge()

    def reject(self, requeue: bool = False) -> None:  # noqa: FBT001, FBT002 - Celery's signature
        """Requeue the message, which counts as a worker's death only if its process died, or write a dead letter."""
        if requeue:
            if not self._has_failed:
                self.dead_lettering.record_return(self)
            self._death, self._is_settled = None, True
        elif not self.acknowledged:
            self._death = self._death or self._death_of(Reason.REJECTED)
            if self._dead_letter():
                self.send_event("task-rejected", requeue=False)
                return
        super().reject(requeue)

    def on_stored_success(self) -> None:
        """Write no dead letter for a task that succeeded."""
        self._death = None

    def on_lost(self, retry: Callable[[], bool]) -> bool:
        """Write no dead letter for a task that is sent again."""
        death, self._death = self._death, None
        retried = retry()
        if not retried:
            self._death = death
        return retried

    @contextmanager
    def _dying(self, raised: BaseException, traceback: str) -> Iterator[None]:
        """Set `_death` while Celery handles a failure; dead-letter an early acknowledged message at the end."""
        self._death = self._classified(raised, traceback)
        self._has_failed = not isinstance(unwrapped(raised), Reject)
        try:
            yield
            if self._death is not None and self.acknowledged:
                self._dead_letter(already_settled=True)
        finally:
            self._death, self._has_failed = None, False

    def _classified(self, raised: BaseException, traceback: str) -> Death | None:
        if self._is_settled or self.is_withdrawn:
            return None
        try:
            reason = reason_of(raised, self.task, self.retries)
            if reason is None:
                return None
            if reason in _RAISED and has_run_to_its_end(traceback):
                reason = Reason.RESULT_NOT_STORED
            exception = cause(raised)
            return self._death_of(reason, name_of(exception), text_of(exception), traceback)
        except Exception:
            log.exception("the reason of a failure could not be determined")
            return self._death_of(Reason.FAILED, type(unwrapped(raised)).__name__, "", traceback)

    def _death_of(self, reason: str, exception: str = "", message: str = "", traceback: str = "") -> Death:
        return Death(reason, "", exception=exception, message=message, traceback=traceback, attempts=self.retries + 1)

    def _dead_letter(self, *, already_settled: bool = False) -> bool:
        """Write the dead letter that is due; return False if no failure is final, and Celery settles the message."""
        death, self._death = self._death, None
        if death is None or self._is_settled:
            return False
        if not self.dead_lettering.dead_letter(self.message, death, None if already_settled else self._settle):
            return False
        # Celery must not settle the message again while the dead letter is pending
        self.acknowledged = self._is_settled = True
        return True

    def _settle(self, written: bool) -> None:  # noqa: FBT001 - a callback
        """Acknowledge or requeue the message, in the event loop, once its dead letter is stored or refused."""
        with context_of_sender(self.request_dict):
            self.settle_message(acknowledge=written)
