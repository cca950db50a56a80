"""What Celery notes on a task's class, and its name for a chain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.canvas import _chain

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Mapping

POINTS = (
    Point(
        "celery.app.base:Celery._task_from_fun",
        Failure.SILENT,
        "The doctor and @idempotent take an attribute of a task's class for an option of its decorator, or the reverse;"
        " a job's arguments cannot be checked before its scope is claimed.",
        contains=("'_decorated': True,", "'__header__': self.type_checker(fun, bound=bind),"),
    ),
    Point(
        "celery.app.autoretry:add_autoretry_behaviour",
        Failure.SILENT,
        "The doctor reports the wrong line for a task with `autoretry_for`.",
        contains=("task._orig_run, task.run = task.run, run",),
    ),
    Point(
        "celery.app.task:Task.from_config",
        Failure.LOUD,
        "The doctor takes a task's limit by configuration for none.",
    ),
    Point("celery.canvas:_chain", Failure.LOUD, "A job cannot replace itself by a chain."),
)


def is_decorated(kind: type) -> bool:
    """Return whether `@app.task` made this class, so that its attributes are the decorator's options."""
    return "_decorated" in vars(kind)


def original_run(task: Any) -> Any:
    """Return what a task runs, without the wrapper of `autoretry_for`."""
    return getattr(task, "_orig_run", None) or task.run


def check_arguments(task: Any, arguments: Mapping[str, Any]) -> None:
    """Raise TypeError where a task does not take these keyword arguments, as `apply_async` does."""
    task.__header__(**arguments)


def last_of_chain(signature: Any) -> Any:
    """Return the last task of a chain; of any other signature, itself."""
    return signature.tasks[-1] if isinstance(signature, _chain) and signature.tasks else signature
