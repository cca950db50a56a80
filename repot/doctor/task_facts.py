"""Read a task: its options as Celery uses them, and its calls in the source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from repot.doctor.facts import TaskFacts
from repot.doctor.retry_delays import delays_by_run, longest_automatic_s, number
from repot.doctor.rule import Location
from repot.doctor.typos import unknown_options
from repot.doctor.values import decode
from repot.idempotency import TASK_ID
from repot.upstream.collector import shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from repot.doctor.release import Release
    from repot.doctor.static_analysis import SourceFacts

#: Options of a task that are numbers.
_NUMBERS = ("time_limit", "soft_time_limit", "default_retry_delay", "max_retries", "priority")


def task_lines(tasks: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int], str]:
    """Return the names of tasks by file and first line of their functions."""
    return {(task["file"], task["line"]): task["name"] for task in tasks if task["file"]}


def read_task(
    task: Mapping[str, Any], source: SourceFacts, root: Path, release: Release, *, retries_lost: bool
) -> TaskFacts:
    """Read one task of a document; an option that should be a number and is not goes to `invalid_options`.

    `retries_lost` is what repot does with a lost process where Celery has no option for it.
    """
    # a function made by `exec` has no file
    path = Path(task["file"]) if task["file"] else None
    location = Location(shorten(path, root), task["line"]) if path and path.is_file() else None
    first, last = (
        source.extents.get((location.file, location.line), (location.line, location.line)) if location else (0, 0)
    )
    options = decode(task["options"])
    calls = tuple(call for call in source.calls if call.task == task["name"])
    retries = options["max_retries"] != 0
    autoretry = task["retries_automatically"] and retries
    sent = [call.countdown_s or 0 for call in calls if call.name != "retry"]
    retried = [call.countdown_s or 0 for call in calls if call.name == "retry"]
    if retries and any(call.name == "retry" and not call.delayed for call in calls):
        retried.append(number(options["default_retry_delay"]) or 0)
    delays = delays_by_run(sent, retried, options, retries_automatically=autoretry)
    if autoretry:
        retried.append(longest_automatic_s(options))
    # Celery before 5.7 has one option for both
    both = options["acks_on_failure_or_timeout"]
    retries_it = options["retry_on_worker_lost"]
    on_failure, on_timeout = options["acks_on_failure"], options["acks_on_timeout"]
    return TaskFacts(
        name=task["name"],
        acks_late=bool(options["acks_late"]),
        acks_on_failure=bool(both if on_failure is None else on_failure),
        acks_on_timeout=bool(both if on_timeout is None else on_timeout),
        reject_on_worker_lost=bool(options["reject_on_worker_lost"]),
        retry_on_worker_lost=bool(retries_lost if retries_it is None else retries_it),
        ignore_result=bool(options["ignore_result"]),
        store_errors=bool(options["store_errors_even_if_ignored"]),
        time_limit_s=number(options["time_limit"]) or None,
        soft_time_limit_s=number(options["soft_time_limit"]) or None,
        retries_itself=autoretry or any(call.name == "retry" for call in calls),
        may_retry=bool(retries),
        delays=delays,
        retried_for=frozenset(task["retried_for"] if retries else ()),
        never_retried_for=frozenset(task["never_retried_for"]),
        queue=task["queue"],
        priority=options["priority"] if isinstance(options["priority"], int) else None,
        countdown_s=max((*sent, *retried), default=0.0),
        retry_s=max(retried, default=0.0),
        unknown_options=unknown_options(task["attributes"], release),
        invalid_options={name: repr(options[name]) for name in _NUMBERS if number(options[name]) is None},
        serializer=options["serializer"],
        keyed_by_arguments=task["guarded"] and task["keyed_by"] != TASK_ID.name,
        guarded=task["guarded"],
        batch=int(task["batch"]) if task["batch"].isdecimal() else 0,
        batch_interval_s=(number(task["batch_interval"]) or 0.0) if task["batch"] else 0.0,
        unguarded=not task["guarded"] and task["has_policy"],
        runs_later=task["runs_later"],
        calls=calls,
        location=location,
        first_line=first,
        last_line=last,
    )
