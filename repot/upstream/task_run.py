"""The run of a task and the storing of its success, which an experiment stops in the middle; for experiments only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Callable

_BREAKS = "A scenario whose fault strikes at this moment of a task's run never reaches it."

POINTS = (
    Point(
        "celery.app.trace:build_tracer",
        Failure.SILENT,
        _BREAKS,
        contains=("fun = task if task_has_custom(task, '__call__') else task.run", "task.backend.mark_as_done("),
    ),
    Point(
        "celery.backends.base:Backend.mark_as_done",
        Failure.LOUD,
        _BREAKS,
        "(self, task_id, result, request=None, store_result=True, state='SUCCESS')",
    ),
)


def wrap_run(task: Any, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Run `wrap(body)` in the place of a task's body; before a process has prepared to call it."""
    task.run = wrap(task.run)


def before_success_stored(backend: Any, call: Callable[[str, Any], None]) -> None:
    """Call `call(task_id, request)` before a backend stores a success; once for a backend."""
    store = backend.mark_as_done
    if hasattr(store, "before"):
        return

    def mark_as_done(task_id: str, result: Any, request: Any = None, *rest: Any, **options: Any) -> Any:
        if request is not None:
            call(task_id, request)
        return store(task_id, result, request, *rest, **options)

    mark_as_done.before = call  # type: ignore[attr-defined]
    backend.mark_as_done = mark_as_done
