"""Whether a task that failed had run to its end, by where Celery was when it failed.

Celery calls a task failed also if its body has returned, and then its result cannot be encoded or stored, or what
follows it cannot be sent. Only the line of Celery's own frame in the traceback tells it apart; a traceback comes to the
worker as text, out of a process of the pool.
"""

from __future__ import annotations

import re

from repot.upstream.point import Failure, Point

_BREAKS = "A task whose effect has happened looks like one that failed, and a replay of its dead letter repeats it."

POINTS = (
    Point(
        "celery.app.trace:build_tracer",
        Failure.SILENT,
        _BREAKS,
        contains=("def trace_task(uuid, args, kwargs, request=None):", "fun(*args, **kwargs)", ".mark_as_done("),
    ),
)

_LINE = re.compile(r"app[/\\]trace\.py\", line \d+, in trace_task\n\s+(.*)")
_BODY = "fun(*args, **kwargs)"
_AFTER = ("mark_as_done(", "_dispatch_callbacks_and_chain(", "apply_async(")


def has_run_to_its_end(traceback: str) -> bool:
    """Return whether a traceback says that the task's body had returned; False also if it does not say."""
    lines: list[str] = _LINE.findall(traceback)
    return any(part in line for line in lines for part in _AFTER) and not any(_BODY in line for line in lines)
