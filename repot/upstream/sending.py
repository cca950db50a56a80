"""The one way by which Celery sends a task message: `Celery.send_task`.

`Task.apply_async`, beat, canvas, retries and callbacks all end there, with the application's own pool and routes.
Celery has no setting by which a message goes to another broker. Its parts call the attribute of the application.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

from celery import Celery
from celery._state import _task_stack  # type: ignore[attr-defined]

from repot.upstream.current_app import living_apps
from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BREAKS = "During a rollout, tasks go to the source alone, or a root id has messages on both sides."

POINTS = (
    Point("celery.app.task:Task.apply_async", Failure.SILENT, _BREAKS, contains=("return app.send_task(",)),
    Point("celery.beat:Scheduler.send_task", Failure.SILENT, _BREAKS, contains=("return self.app.send_task(",)),
    Point(
        "celery.app.base:Celery.send_task",
        Failure.SILENT,
        _BREAKS,
        contains=(
            "task_id = task_id or uuid()",
            "producer = producer or publisher",
            "options, route_name or name, args, kwargs, task_type)",
            "root_id = parent.request.root_id or parent.request.id",
            "with self.producer_or_acquire(producer) as P:",
            "if not ignore_result:",
        ),
    ),
    Point(
        "celery.app.base:Celery.send_task",
        Failure.SILENT,
        _BREAKS,
        contains=("registry = self._tasks", "options = dict(filtered_opts, **options)"),
        since="5.7",
    ),
    Point("celery.app.base:Celery.current_worker_task", Failure.LOUD, _BREAKS),
    Point(
        "celery._state:get_current_worker_task",
        Failure.SILENT,
        _BREAKS,
        contains=("for task in reversed(_task_stack.stack):",),
    ),
    Point("celery.app.task:Task._get_exec_options", Failure.LOUD, _BREAKS, "(self)"),
)


@dataclass(slots=True)
class _Taking:
    """What takes the messages of a block's calls in the place of a broker; a copy of its context may outlive it."""

    taker: Callable[..., Any]
    is_over: bool = False


#: That of this thread's block; None as ever.
_TAKING: ContextVar[_Taking | None] = ContextVar("repot_taking", default=None)
#: Two threads may begin at the same time.
_INSTALLING = Lock()

#: The parameters of `send_task` that may follow the arguments of the task without a name.
_POSITIONAL = tuple(inspect.signature(Celery.send_task).parameters)[4:]

#: Whether `send_task` gives a task that it knows by its name alone the options of its class, as `apply_async` does.
_MERGES = "_tasks" in Celery.send_task.__code__.co_names


def send_by(app: Any, send: Callable[[Callable[..., Any], str, Any, Any, dict[str, Any]], Any]) -> None:
    """Let an application send by `send(original, name, args, kwargs, options)`, in the place of an earlier one.

    `options` are all other arguments of `send_task`, by name.
    """
    # what stands on the application itself may be another library's; the method of its class is looked up later, as a
    # library may wrap it after this call
    own = vars(app).get("send_task")
    if _is_ours(app):
        own = own.repot_original  # type: ignore[union-attr]

    def send_task(name: str, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        if more:
            options |= dict(zip(_POSITIONAL, more, strict=False))
        original = own or type(app).send_task.__get__(app)
        taking = _taking()
        if taking is None:
            return send(original, name, args, kwargs, options)
        # another library may call this from `original`
        token = _TAKING.set(None)
        try:
            return taking.taker(app, original, name, args, kwargs, options)
        finally:
            _TAKING.reset(token)

    send_task.repot_original = own  # type: ignore[attr-defined]
    app.send_task = send_task


@contextmanager
def sends_taken(app: Any, taker: Callable[..., Any]) -> Iterator[None]:
    """Let `taker(app, original, name, args, kwargs, options)` send what this thread sends in a block.

    A chain calls its first task without the producer that it was given, so there is no other way than through here.
    """
    with _INSTALLING:
        # a canvas may have tasks of other applications
        for one in (app, *living_apps()):
            if not _is_ours(one):
                send_by(one, _as_ever)
    taking = _Taking(taker)
    token = _TAKING.set(taking)
    try:
        yield
    finally:
        taking.is_over = True
        _TAKING.reset(token)


def is_taken() -> bool:
    """Return whether the caller is in a block of `sends_taken`."""
    return _taking() is not None


def _taking() -> _Taking | None:
    found = _TAKING.get()
    return None if found is None or found.is_over else found


def _as_ever(original: Callable[..., Any], name: str, args: Any, kwargs: Any, options: dict[str, Any]) -> Any:
    return original(name, args, kwargs, **options)


def _is_ours(app: Any) -> bool:
    return hasattr(vars(app).get("send_task"), "repot_original")


def stop_sending_by(app: Any) -> None:
    """Undo `send_by`."""
    if _is_ours(app):
        ours = vars(app)["send_task"]
        del app.send_task
        if ours.repot_original is not None:
            app.send_task = ours.repot_original


def current_root(app: Any) -> str | None:
    """Return the root id of the task that runs in this thread of a worker; None outside of tasks."""
    # at once outside of tasks: each producer asks for each message
    if not _task_stack.stack:
        return None
    task = app.current_worker_task
    return None if task is None else task.request.root_id or task.request.id


def options_with_those_of_the_task(app: Any, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a call over those of the task's class, as Celery merges them; for `route` as well."""
    task = options.get("task_type")
    if task is None and _MERGES:
        # not app.tasks, which would finalize the application
        task = app._tasks.get(name)
    if task is None:
        return dict(options)
    of_the_class = {name: value for name, value in task._get_exec_options().items() if value is not None}
    return {**of_the_class, **options}
