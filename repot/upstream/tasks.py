"""What Celery notes on a task's class, and its name for a chain."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from celery import Task
from celery.app.autoretry import add_autoretry_behaviour
from celery.canvas import _chain

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
        "The doctor reports the wrong line for a task with `autoretry_for`; a guarded one is retried whose outcome is "
        "unknown.",
        contains=("task._orig_run, task.run = task.run, run", "ret = task.retry(exc=exc, **"),
    ),
    Point(
        "celery.app.task:Task.from_config",
        Failure.LOUD,
        "The doctor takes a task's limit by configuration for none.",
    ),
    Point(
        "celery.app.task:Task.bind",
        Failure.SILENT,
        "The doctor counts too few findings that `repot.configure` clears.",
        "(cls, app)",
        ("for attr_name, config_name in cls.from_config: if getattr(cls, attr_name, None) is None:",),
    ),
    Point("celery.canvas:_chain", Failure.LOUD, "A job cannot replace itself by a chain."),
)


def is_decorated(kind: type) -> bool:
    """Return whether `@app.task` made this class, so that its attributes are the decorator's options."""
    return "_decorated" in vars(kind)


def original_run(task: Any) -> Any:
    """Return what a task runs, without the wrapper of `autoretry_for`."""
    return getattr(task, "_orig_run", None) or task.run


def is_retried_by_itself() -> bool:
    """Return whether the method `retry` that asks was called by the wrapper of `autoretry_for`, not by the task."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_name in ("is_retried_by_itself", "retry"):
        frame = frame.f_back
    return frame.f_globals.get("__name__") == add_autoretry_behaviour.__module__


def check_arguments(task: Any, arguments: Mapping[str, Any]) -> None:
    """Raise TypeError where a task does not take these keyword arguments, as `apply_async` does."""
    task.__header__(**arguments)


def last_of_chain(signature: Any) -> Any:
    """Return the last task of a chain; of any other signature, itself."""
    return signature.tasks[-1] if isinstance(signature, _chain) and signature.tasks else signature


#: Tasks that were bound while it was noted -> the options that they took from the configuration, with their settings.
_TAKEN: WeakKeyDictionary[type, list[tuple[str, str]]] = WeakKeyDictionary()


@contextmanager
def noting_what_tasks_take() -> Iterator[None]:
    """Note which options each task that is bound meanwhile takes from the configuration: it cannot be seen later."""
    owner: Any = Task
    bind = vars(Task)["bind"]

    def noting(cls: Any, app: Any) -> Any:
        if not cls.__bound__:
            _TAKEN[cls] = [(option, key) for option, key in cls.from_config if getattr(cls, option, None) is None]
        return bind.__func__(cls, app)

    owner.bind = classmethod(noting)
    try:
        yield
    finally:
        owner.bind = bind


def take_again(app: Any) -> None:
    """Let an application's tasks take from the configuration of now what they were noted to have taken."""
    for task in app.tasks.values():
        for option, key in _TAKEN.get(type(task), ()):
            # for two options Celery has a default of its own where no setting says anything
            if app.conf[key] is not None:
                setattr(type(task), option, app.conf[key])


def options_by_configuration(app: Any) -> dict[str, Any]:
    """Return the values of the settings that tasks take when they are bound."""
    return {key: app.conf[key] for _, key in Task.from_config}


def bound_before(app: Any, earlier: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the tasks that have an option of the `earlier` configuration, by option and value; an empty dict for none.

    Whether they state the same value themselves cannot be seen.
    """
    found: dict[str, list[str]] = {}
    if not app.finalized:
        return found
    for task in app.tasks.values():
        for option, key in Task.from_config if not task.name.startswith("celery.") else ():
            if getattr(task, option, None) == earlier[key] != app.conf[key]:
                found.setdefault(f"{option}={earlier[key]!r}", []).append(task.name)
    return found
