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


#: Options of tasks by their setting, which releases before 5.7 do not give a task.
_BY_SETTING = {
    "retry_on_worker_lost": "task_retry_on_worker_lost",
    "soft_time_limit": "task_soft_time_limit",
    "time_limit": "task_time_limit",
}
#: Options that came with 5.7, and the one that decides before.
_FORMER = {"acks_on_failure": "acks_on_failure_or_timeout", "acks_on_timeout": "acks_on_failure_or_timeout"}


def option_of(task: Any, name: str) -> Any:
    """Return what holds for a task in each release: its own option, the configured one, or what decided before."""
    own = getattr(task, name, None)
    if own is None and name in _FORMER:
        return getattr(task, _FORMER[name])
    return task.app.conf.get(_BY_SETTING[name]) if own is None and name in _BY_SETTING else own


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
