"""Decide whether a failed task becomes a dead letter, and for which reason."""

from __future__ import annotations

from collections.abc import Iterable
from traceback import format_exception_only
from typing import Any

from celery.exceptions import (
    Ignore,
    MaxRetriesExceededError,
    Reject,
    Retry,
    Terminated,
    TimeLimitExceeded,
    WorkerLostError,
)

from repot.deadletter.reason import Reason
from repot.errors import DeliveryLimitReached, InvalidMessage, OutcomeUnknown, ResultExpired
from repot.upstream.wrapped_errors import unpickleable_class, unwrapped

#: Not final, or not a failure.
_NOT_DEAD = (Ignore, Retry, Terminated)


def reason_of(raised: BaseException, task: Any, retries: int) -> Reason | None:  # noqa: ANN401 - celery's Task
    """Return the reason why a task that ended with this exception is dead; None if it makes no dead letter.

    The task's attributes are `permanent` (a tuple of exception classes), Celery's `throws` (expected exceptions) and
    `dead_letter` (False for no dead letters).
    """
    raised = unwrapped(raised)
    exception = cause(raised)
    if _makes_no_dead_letter(raised, exception, task):
        return None
    lost = isinstance(raised, WorkerLostError | SystemExit | KeyboardInterrupt)
    reasons = (
        (Reason.WORKER_LOST, lost),
        (Reason.TIME_LIMIT, isinstance(raised, TimeLimitExceeded)),
        (Reason.DELIVERY_LIMIT, isinstance(exception, DeliveryLimitReached)),
        (Reason.UNDECODABLE, isinstance(exception, InvalidMessage)),
        (Reason.UNKNOWN_OUTCOME, _is(exception, (OutcomeUnknown,))),
        (Reason.PERMANENT, _is(exception, _classes(task, "permanent"))),
        (Reason.REJECTED, isinstance(raised, Reject)),
        (Reason.RETRIES_EXHAUSTED, _is(exception, (MaxRetriesExceededError,)) or _has_no_retries_left(task, retries)),
    )
    return next((reason for reason, applies in reasons if applies), Reason.FAILED)


def cause(raised: BaseException) -> BaseException:
    """Return the exception itself: without billiard's wrapper, and taken out of a `Reject`."""
    raised = unwrapped(raised)
    reason = getattr(raised, "reason", None)
    return reason if isinstance(raised, Reject) and isinstance(reason, BaseException) else raised


def name_of(exception: BaseException) -> str:
    """Return the name of an exception's class, also if the pool could not pickle it."""
    unpickleable = unpickleable_class(exception)
    if unpickleable is not None:
        return ".".join(unpickleable)
    kind = type(exception)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def text_of(exception: BaseException) -> str:
    """Return an exception's message, also if `str()` fails on it."""
    if isinstance(exception, Reject):
        return str(getattr(exception, "reason", "") or "")
    lines = format_exception_only(exception)
    return "".join(lines).partition(": ")[2].rstrip()


def _makes_no_dead_letter(raised: BaseException, exception: BaseException, task: Any) -> bool:  # noqa: ANN401
    if isinstance(raised, Reject) and getattr(raised, "requeue", False):
        return True
    expected = (*_NOT_DEAD, *_classes(task, "throws"))
    if not getattr(task, "dead_letter", True) or _is(raised, _NOT_DEAD) or _is(exception, expected):
        return True
    # the effect is done, and its own message goes on; unless this is that message, which cannot go on then
    return _is(exception, (ResultExpired,)) and not getattr(exception, "own", False)


def _is(exception: BaseException, kinds: Iterable[type[BaseException]]) -> bool:
    kinds = tuple(kinds)
    unpickleable = unpickleable_class(exception)
    if unpickleable is not None:
        # only its name arrived: its base classes are unknown
        return unpickleable[1] in {kind.__name__ for kind in kinds}
    return isinstance(exception, kinds)


def _classes(task: Any, attribute: str) -> tuple[type[BaseException], ...]:  # noqa: ANN401
    found = getattr(task, attribute, None) or ()
    listed = found if isinstance(found, Iterable) and not isinstance(found, type) else (found,)
    # the application may have written anything there: a failure must still be classified
    return tuple(one for one in listed if isinstance(one, type) and issubclass(one, BaseException))


def _has_no_retries_left(task: Any, retries: int) -> bool:  # noqa: ANN401
    max_retries = getattr(task, "max_retries", None)
    return max_retries is not None and 0 < max_retries <= retries
