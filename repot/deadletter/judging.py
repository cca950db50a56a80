"""Whether a task's failure is the end of it, and what to call that."""

from __future__ import annotations

from collections.abc import Iterable
from traceback import format_exception_only
from typing import Any

from billiard import einfo
from celery.exceptions import (
    Ignore,
    MaxRetriesExceededError,
    Reject,
    Retry,
    Terminated,
    TimeLimitExceeded,
    WorkerLostError,
)
from celery.utils.serialization import UnpickleableExceptionWrapper

from repot.deadletter import letter
from repot.errors import DeliveryLimitReached, MessageUnusable, OutcomeUnknown, ResultExpired

# the stubs do not know it
_WRAPPER: type[BaseException] = einfo.ExceptionWithTraceback  # type: ignore[attr-defined]

#: Not the end, or not a failure. MemoryError: Celery leaves such a message unacknowledged, so it comes again.
_NO_DEATH = (Ignore, Retry, Terminated, MemoryError)


def reason_of(raised: BaseException, task: Any, retries: int) -> str | None:  # noqa: ANN401 - celery's Task
    """Why a task that ended with this exception is dead; None if it is not, or is not to be kept.

    A task says what is permanent (`permanent`, a tuple of exception classes), what is
    expected (Celery's `throws`) and whether it is kept at all (`dead_letter`).
    """
    raised = unwrapped(raised)
    exception = cause(raised)
    if _is_no_death(raised, exception, task):
        return None
    lost = isinstance(raised, WorkerLostError | SystemExit | KeyboardInterrupt)
    verdicts = (
        (letter.WORKER_LOST, lost),
        (letter.TIME_LIMIT, isinstance(raised, TimeLimitExceeded)),
        (letter.DELIVERY_LIMIT, isinstance(exception, DeliveryLimitReached)),
        (letter.UNDECODABLE, isinstance(exception, MessageUnusable)),
        (letter.UNKNOWN_OUTCOME, _is(exception, (OutcomeUnknown,))),
        (letter.PERMANENT, _is(exception, _classes(task, "permanent"))),
        (letter.REJECTED, isinstance(raised, Reject)),
        (letter.RETRIES_EXHAUSTED, _is(exception, (MaxRetriesExceededError,)) or _is_spent(task, retries)),
    )
    return next((reason for reason, applies in verdicts if applies), letter.FAILED)


def cause(raised: BaseException) -> BaseException:
    """The exception itself: without billiard's wrapper, and out of a `Reject` that gives it as its reason."""
    raised = unwrapped(raised)
    reason = getattr(raised, "reason", None)
    return reason if isinstance(raised, Reject) and isinstance(reason, BaseException) else raised


def unwrapped(raised: BaseException) -> BaseException:
    """An exception without billiard's wrapper, which carries a traceback from one process to another."""
    wrapped = getattr(raised, "exc", None)
    return wrapped if isinstance(raised, _WRAPPER) and isinstance(wrapped, BaseException) else raised


def name_of(exception: BaseException) -> str:
    """An exception's class, also of one that could not be pickled on its way from the pool."""
    if isinstance(exception, UnpickleableExceptionWrapper):
        return f"{exception.exc_module}.{exception.exc_cls_name}"
    kind = type(exception)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def text_of(exception: BaseException) -> str:
    """What an exception says, also of one whose own text cannot be had."""
    if isinstance(exception, Reject):
        return str(getattr(exception, "reason", "") or "")
    lines = format_exception_only(exception)
    return "".join(lines).partition(": ")[2].rstrip()


def _is_no_death(raised: BaseException, exception: BaseException, task: Any) -> bool:  # noqa: ANN401
    if isinstance(raised, Reject) and getattr(raised, "requeue", False):
        return True
    expected = (*_NO_DEATH, *_classes(task, "throws"))
    if not getattr(task, "dead_letter", True) or _is(raised, _NO_DEATH) or _is(exception, expected):
        return True
    # the effect is done, and whoever did it went on; unless that was this message, which nobody carries on then
    return _is(exception, (ResultExpired,)) and not getattr(exception, "own", False)


def _is(exception: BaseException, kinds: Iterable[type[BaseException]]) -> bool:
    kinds = tuple(kinds)
    if isinstance(exception, UnpickleableExceptionWrapper):
        # only the name came through; it says nothing of the classes it derives from
        return exception.exc_cls_name in {kind.__name__ for kind in kinds}
    return isinstance(exception, kinds)


def _classes(task: Any, attribute: str) -> tuple[type[BaseException], ...]:  # noqa: ANN401
    found = getattr(task, attribute, None) or ()
    listed = found if isinstance(found, Iterable) and not isinstance(found, type) else (found,)
    # whatever else an application wrote there: a failure must be judged all the same
    return tuple(one for one in listed if isinstance(one, type) and issubclass(one, BaseException))


def _is_spent(task: Any, retries: int) -> bool:  # noqa: ANN401
    most = getattr(task, "max_retries", None)
    return most is not None and 0 < most <= retries
