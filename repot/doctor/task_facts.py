"""Read a task: its options as Celery uses them, and its calls in the source."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repot.doctor.durations import seconds
from repot.doctor.facts import TaskFacts
from repot.doctor.rule import Location
from repot.doctor.static_analysis import shorten
from repot.doctor.typos import has_unread_attribute, unknown_options
from repot.errors import FactUnknown
from repot.idempotency import TASK_ID, IdempotentTask
from repot.idempotency.definition import runs_later
from repot.upstream.tasks import original_run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery import Celery

    from repot.doctor.static_analysis import SourceFacts

#: Options of a task that are numbers.
_NUMBERS = ("time_limit", "soft_time_limit", "default_retry_delay", "max_retries", "priority")


def _function(task: Any) -> Any:  # noqa: ANN401 - any callable
    function = getattr(task, "__wrapped__", None) or original_run(task)
    try:
        return inspect.unwrap(function)
    except ValueError:  # a circular chain of wrappers
        return function


def task_lines(tasks: Iterable[Any]) -> dict[tuple[str, int], str]:
    """Return the names of tasks by file and first line of their functions."""
    lines = {}
    for task in tasks:
        code = getattr(_function(task), "__code__", None)
        if code is not None:
            lines[code.co_filename, code.co_firstlineno] = str(task.name)
    return lines


def read_task(app: Celery, task: Any, found: SourceFacts, root: Path) -> TaskFacts:  # noqa: ANN401 - a task's class is made up
    """Read one task; an option that should be a number and is not goes to `invalid_options`."""
    code = getattr(_function(task), "__code__", None)
    # a function made by `exec` has no file
    path = Path(code.co_filename) if code else None
    location = Location(shorten(path, root), code.co_firstlineno) if code and path and path.is_file() else None
    first, last = (
        found.extents.get((location.file, location.line), (location.line, location.line)) if location else (0, 0)
    )
    calls = tuple(call for call in found.calls if call.task == task.name)
    invalid_options = {name: repr(value) for name in _NUMBERS if _number(value := getattr(task, name, None)) is None}
    autoretry = bool(getattr(task, "autoretry_for", ())) and task.max_retries != 0
    plain_retry = any(call.name == "retry" and not call.delayed for call in calls)
    delays = [call.countdown_s or 0 for call in calls]
    if autoretry:
        delays.append(_backoff_s(task))
    if plain_retry and task.max_retries != 0:
        delays.append(_number(task.default_retry_delay) or 0)
    guarded = isinstance(task, IdempotentTask)
    return TaskFacts(
        name=str(task.name),
        acks_late=bool(task.acks_late),
        acks_on_failure=bool(task.acks_on_failure),
        acks_on_timeout=bool(task.acks_on_timeout),
        reject_on_worker_lost=bool(task.reject_on_worker_lost),
        retry_on_worker_lost=bool(task.retry_on_worker_lost),
        ignore_result=bool(task.ignore_result),
        store_errors=bool(task.store_errors_even_if_ignored),
        time_limit_s=_number(task.time_limit) or None,
        soft_time_limit_s=_number(task.soft_time_limit) or None,
        retries_itself=autoretry or any(call.name == "retry" for call in calls),
        queue=_queue_of(app, task),
        priority=task.priority if isinstance(task.priority, int) else None,
        countdown_s=max(delays, default=0.0),
        unknown_options=unknown_options(task),
        invalid_options=invalid_options,
        serializer=task.serializer,
        keyed_by_arguments=guarded and task.idempotency.key is not TASK_ID,
        guarded=guarded,
        unguarded=not guarded and has_unread_attribute(task, "idempotency"),
        runs_later=runs_later(task.run),
        calls=calls,
        location=location,
        first_line=first,
        last_line=last,
    )


def _number(value: object) -> float | None:
    """Return a number of seconds, 0 for None; None for an infinite number or another type."""
    try:
        found = seconds(value)
    except FactUnknown:
        return None
    return found if math.isfinite(found) else None


def _backoff_s(task: Any) -> float:  # noqa: ANN401 - a task's class is made up
    """Return the longest delay before an automatic retry (`celery/app/autoretry.py`)."""
    given = getattr(task, "retry_kwargs", None)
    options = given if isinstance(given, dict) else {}
    # the arguments of `retry` override the task's options
    retries = options.get("max_retries")
    retries = task.max_retries if retries is None else retries
    if retries == 0:
        return 0.0
    factor = _number(getattr(task, "retry_backoff", False)) or 0
    if not factor:
        countdown = options.get("countdown")
        return _number(task.default_retry_delay if countdown is None else countdown) or 0
    longest = _number(getattr(task, "retry_backoff_max", 600)) or 0
    if not isinstance(retries, int):
        return longest
    # the exponent is limited so that the number fits a float
    return min(longest, int(max(1.0, factor)) * 2.0 ** min(max(0, retries - 1), 62))


def _queue_of(app: Celery, task: Any) -> str:  # noqa: ANN401 - a task's class is made up
    own = getattr(task, "queue", None)
    try:
        route = app.amqp.router.route({"queue": own} if own else {}, task.name, (), {})
    except Exception:  # noqa: BLE001 - a router is user code, and may read arguments that are missing here
        return ""
    return str(getattr(route.get("queue"), "name", route.get("queue") or ""))
