"""The queues that an application names: those it declares, and those to which its routing sends its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kombu import Queue

from repot.errors import AppUnusable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery


def queues_of(app: Celery) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the queues that an application names, each with where; and what its routing would not say.

    Asked are `task_queues`, `task_default_queue`, the routing of each task without arguments, `task_routes` also for
    tasks that are not registered here, and the entries of `beat_schedule`. A router may send a task elsewhere by its
    arguments, and a caller by `apply_async(queue=...)`.
    """
    found: dict[str, str] = {}
    unknown: list[str] = []
    stated = (*queues_in_routes(app.conf.task_routes), *queues_in_schedule(app.conf.beat_schedule))
    for name, where in (*_declared(app), *_sent_to(app, unknown), *stated):
        if name:
            found.setdefault(name, where)
    return found, tuple(unknown)


def _declared(app: Celery) -> Iterator[tuple[str, str]]:
    declared: Any = app.conf.task_queues or ()
    for one in declared:
        yield _name_of(one), "task_queues"
    yield str(app.conf.task_default_queue), "task_default_queue"


def _sent_to(app: Celery, unknown: list[str]) -> Iterator[tuple[str, str]]:
    try:
        # as a worker does: tasks may be in modules of their own
        app.loader.import_default_modules()
    except Exception as error:  # noqa: BLE001 - the user's own modules
        unknown.append(f"a module of the application fails: {type(error).__name__}: {error}")
    for task in sorted(app.tasks):
        try:
            # without a queue of its own, it goes to the default one
            yield routed_queue(app, task), f"where {task} is sent"
        except AppUnusable as error:
            unknown.append(error.message)


def queues_in_schedule(schedule: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - Celery's setting
    """Yield the queues that entries of `beat_schedule` name, each with where; a name may be empty."""
    for entry, scheduled in dict(schedule or {}).items():
        if isinstance(scheduled, Mapping):
            yield _name_of((scheduled.get("options") or {}).get("queue")), f"beat_schedule {entry!r}"


def routes_of(routes: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401 - Celery's setting takes many forms
    """Yield each task or pattern of `task_routes` with its route: of a mapping, or a list of mappings or pairs.

    Functions are asked by task.
    """
    if isinstance(routes, Mapping):
        yield from routes.items()
    elif isinstance(routes, list | tuple):
        for route in routes:
            is_pair = isinstance(route, list | tuple) and len(route) == 2 and isinstance(route[1], Mapping | str)  # noqa: PLR2004
            yield from routes_of({route[0]: route[1]} if is_pair else route)


def queues_in_routes(routes: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - Celery's setting takes many forms
    """Yield the queues that `task_routes` names; a name may be empty."""
    for _, route in routes_of(routes):
        yield _name_of(route.get("queue") if isinstance(route, Mapping) else route), "task_routes"


def _name_of(queue: Any) -> str:  # noqa: ANN401 - what an application writes
    if isinstance(queue, Queue):
        return str(queue.name)
    return queue if isinstance(queue, str) else ""


def routed_queue(app: Celery, task: str) -> str:
    """Return the queue that an application's own routing names for a task; '' if it names none.

    `Task.queue` comes first, then `task_routes`, asked without arguments.

    Raises:
        AppUnusable: the routing itself fails.
    """
    kind: Any = app.tasks.get(task)
    try:
        router: Any = app.amqp.router
        route = getattr(kind, "queue", None) or router.lookup_route(task, (), {}, {}, kind)
        # it takes the queue out of a dictionary, and Celery keeps one of its own
        found = router.expand_destination(dict(route) if isinstance(route, dict) else route) if route else {}
    except Exception as error:
        # a router is the user's own code
        message = f"the application's routing fails for the task {task!r}: {type(error).__name__}: {error}"
        raise AppUnusable(message, hint="Move without --reroute, or name the queues with --map.") from error
    queue = found.get("queue")
    return str(queue.name if isinstance(queue, Queue) else queue or "")
