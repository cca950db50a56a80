"""Exceptions that billiard and Celery wrap on their way from a pool process to the worker."""

from __future__ import annotations

from typing import Any

from billiard import einfo
from celery.utils.serialization import UnpickleableExceptionWrapper

from repot.upstream.point import Failure, Point

_BREAKS = "A dead letter names the wrapper in the place of the task's exception, and has the wrong reason."

POINTS = (
    Point(
        "billiard.einfo:ExceptionWithTraceback.__init__",
        Failure.SILENT,
        _BREAKS,
        "(self, exc, tb)",
        ("self.exc = exc",),
    ),
    Point(
        "celery.utils.serialization:UnpickleableExceptionWrapper.__init__",
        Failure.LOUD,
        _BREAKS,
        contains=("self.exc_module = exc_module", "self.exc_cls_name = exc_cls_name"),
    ),
    Point("billiard.einfo:ExceptionInfo.__init__", Failure.LOUD, "A task over its delivery limit cannot be failed."),
)

# the stubs do not know it
_WRAPPER: type[BaseException] = einfo.ExceptionWithTraceback  # type: ignore[attr-defined]


def unwrapped(raised: BaseException) -> BaseException:
    """Return an exception without billiard's wrapper, which carries a traceback from one process to another."""
    wrapped = getattr(raised, "exc", None)
    return wrapped if isinstance(raised, _WRAPPER) and isinstance(wrapped, BaseException) else raised


def unpickleable_class(exception: BaseException) -> tuple[str, str] | None:
    """Return module and name of the class of an exception that could not be pickled; None for any other."""
    if isinstance(exception, UnpickleableExceptionWrapper):
        return str(exception.exc_module), str(exception.exc_cls_name)
    return None


def as_exception_info(error: Exception) -> Any:
    """Return an `ExceptionInfo` of an error that was not raised: billiard takes none without a traceback."""

    def fail() -> None:
        raise error

    try:
        fail()
    except Exception:  # noqa: BLE001 - whatever was given
        return einfo.ExceptionInfo()
