"""What a user's application brings to an experiment: its queues, and how its task is sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery.exceptions import QueueNotFound

from repot.errors import ConfigInvalid
from repot.upstream.collector import is_own
from repot.worker.configure import applied_entries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from celery import Celery

#: Prefixes of the names of tasks that are not the application's own.
OTHER_TASKS = ("celery.", "repot.")

#: What a task itself states about how it is sent; `apply_async` reads it, and `send_task` does not.
_SENDING = (
    "queue", "routing_key", "exchange", "priority", "expires", "serializer", "delivery_mode", "compression",
    "time_limit", "soft_time_limit",
)  # fmt: skip

#: Settings that a producer shares with its workers. Otherwise workers reject its messages, its messages reach other
#: queues, or RabbitMQ refuses the second declaration of one.
_SHARED = (
    "accept_content", "task_serializer", "task_protocol", "task_compression", "task_default_priority",
    "task_default_delivery_mode", "task_default_queue", "task_default_queue_type", "task_default_routing_key",
    "task_default_exchange", "task_default_exchange_type", "task_queues", "task_create_missing_queues",
    "task_create_missing_queue_type", "task_create_missing_queue_exchange_type", "task_queue_max_priority",
    "task_queue_ha_policy", "task_inherit_parent_priority",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Application:
    """The part of an application that an experiment keeps.

    Attributes:
        queues: what its workers consume: each queue that is declared or that a task is routed to, or those that the
            user has named.
        queue: where the task under test is sent.
        options: how else it is sent, by the task's own options and its route.
    """

    queues: tuple[str, ...] = ()
    queue: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


def inspect(
    app: Celery, task: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], queues: Sequence[str] = ()
) -> Application:
    """Return what an application brings; `queues` are those that its workers consume, if the user has named them.

    Raises:
        ConfigInvalid: the task is sent to a queue that is not declared, or that no worker consumes.
    """
    try:
        routed = _route(app, app.tasks[task], args, kwargs)
    except QueueNotFound as error:
        message = f"{task} cannot be sent: {error}"
        raise ConfigInvalid(message, hint="A producer of the application gets this error as well.") from error
    queue = routed.pop("queue").name
    consumed = tuple(queues) or tuple(dict.fromkeys((queue, *_queues(app))))
    if queue not in consumed:
        message = f"{task} is sent to the queue {queue!r}, which no worker consumes"
        raise ConfigInvalid(message, hint=f"Name it as well: --queues {','.join((*consumed, queue))}")
    return Application(consumed, queue, {name: value for name, value in routed.items() if value is not None})


def shared_settings(app: Celery) -> dict[str, Any]:
    """Return the settings of an application's own that each of its producers needs; none of `repot.configure`."""
    applied = {key.partition(".")[0] for key, one in applied_entries(app).items() if not one.is_own}
    return {name: app.conf.get(name) for name in _SHARED if name not in applied and is_own(app, name)}


def _queues(app: Celery) -> Iterator[str]:
    """Yield the names of the queues that are declared, and of those that tasks are routed to."""
    yield from app.amqp.queues
    for name, task in app.tasks.items():
        if not name.startswith(OTHER_TASKS):
            try:
                yield _route(app, task, (), {})["queue"].name
            except Exception:  # noqa: BLE001, S112 - a router of the application's own, without the arguments it expects
                continue


def _route(app: Celery, task: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - Celery's
    given = {name: getattr(task, name, None) for name in _SENDING}
    found: dict[str, Any] = app.amqp.router.route(given, task.name, args, dict(kwargs), task_type=task)
    return found
