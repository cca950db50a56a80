"""Celery's way to queues (`app.amqp`): its declarations, its router, and the last step of sending.

All three can be subclassed, which Celery does not document: `app.amqp_cls`, `AMQP.queues_cls`, `AMQP.Router`. The bases
here have hooks in the place of private methods.
"""

from __future__ import annotations

from os import getpid
from typing import TYPE_CHECKING, Any

from celery.app.amqp import AMQP, Queues
from celery.app.routes import Router
from celery.utils.imports import symbol_by_name

from repot.upstream.app_servers import forget_amqp
from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery
    from kombu import Queue

_DECLARING = "Queues that an application declares keep Celery's arguments: no dead letters, no delays."
_SENDING = "Delayed tasks wait in a worker, and messages do not say when they were sent."

POINTS = (
    Point(
        "celery.app.base:Celery.amqp", Failure.SILENT, _DECLARING, contains=("instantiate(self.amqp_cls, app=self)",)
    ),
    Point(
        "celery.app.amqp:AMQP.Queues",
        Failure.SILENT,
        _DECLARING,
        contains=("return self.queues_cls(",),
    ),
    Point("celery.app.amqp:Queues._add", Failure.SILENT, _DECLARING, "(self, queue)"),
    Point("celery.app.amqp:Queues.add", Failure.SILENT, _DECLARING, contains=("return self._add(queue)",)),
    Point("celery.app.amqp:Queues.new_missing", Failure.SILENT, _DECLARING, "(self, name)"),
    Point("celery.app.amqp:Queues.select_add", Failure.SILENT, _DECLARING, "(self, queue, **kwargs)"),
    Point("celery.app.amqp:AMQP.Router", Failure.SILENT, _DECLARING, "(self, queues=None, create_missing=None)"),
    Point(
        "celery.app.routes:Router.route",
        Failure.SILENT,
        "The retry of a delayed task goes to the exit of the delays, that is nowhere.",
        "(self, options, name, args=(), kwargs=None, task_type=None)",
    ),
    Point("celery.app.routes:Router.expand_destination", Failure.SILENT, _DECLARING, "(self, route)"),
    Point(
        "celery.app.amqp:AMQP.send_task_message",
        Failure.SILENT,
        _SENDING,
        contains=("return self._create_task_sender()",),
    ),
    Point(
        "celery.app.amqp:AMQP._create_task_sender",
        Failure.LOUD,
        _SENDING,
        contains=("def send_task_message(producer, name, message,", "producer.publish("),
    ),
    Point(
        "celery.app.amqp:AMQP._event_dispatcher",
        Failure.SILENT,
        "A forked process waits for ever with its first event about a task.",
        contains=("return self.app.events.Dispatcher(enabled=False)",),
    ),
)


class HookedQueues(Queues):  # type: ignore[misc]
    """Celery's declarations, with a hook for each queue that is declared."""

    default_exchange: Any
    create_missing_queue_type: str | None

    def adjusted(self, queue: Queue) -> Queue:
        """Hook: return the queue to declare in the place of this one."""
        return queue

    def _add(self, queue: Queue) -> Queue:
        added: Queue = super()._add(self.adjusted(queue))  # type: ignore[misc]
        # as stock Celery leaves the application's own object
        queue.exchange, queue.routing_key = added.exchange, added.routing_key
        return added


class HookedRouter(Router):  # type: ignore[misc]
    """Celery's router."""

    queues: Any


class HookedAMQP(AMQP):  # type: ignore[misc]
    """Celery's way to queues, with hooks for its declarations, its router, and the last step of sending."""

    def __init__(self, app: Celery) -> None:
        """Take the application."""
        super().__init__(app)
        self.queues_cls: Any = self._make_queues

    def make_queues(self, *args: Any, **options: Any) -> HookedQueues:
        """Hook: return the declarations."""
        return HookedQueues(*args, **options)

    def _make_queues(self, *args: Any, **options: Any) -> HookedQueues:
        made = self.make_queues(*args, **options)
        if not hasattr(made, "create_missing_queue_type"):
            # Celery before 5.6 declares queues by their name alone as classic ones
            made.create_missing_queue_type = self.app.conf.get("task_create_missing_queue_type")
        return made

    def make_router(self, *args: Any, **options: Any) -> HookedRouter:
        """Hook: return the router."""
        return HookedRouter(*args, **options)

    def wrap_sender(self, send: Callable[..., Any]) -> Callable[..., Any]:
        """Hook: return what sends a message in the place of `send(producer, name, message, ...)`."""
        return send

    def Router(self, queues: Any = None, create_missing: Any = None) -> Any:  # noqa: N802 - Celery's
        """Make the router."""
        create = self.app.either("task_create_missing_queues", create_missing)
        return self.make_router(self.routes, queues or self.queues, create, app=self.app)

    def _create_task_sender(self) -> Callable[..., Any]:
        make = super()._create_task_sender  # type: ignore[misc]
        senders: dict[int, Callable[..., Any]] = {}

        def send(*arguments: Any, **options: Any) -> Any:
            pid = getpid()
            if pid not in senders:
                # another thread of the parent may have had the lock of what sends events about tasks
                vars(self).pop("_event_dispatcher", None)
                senders[pid] = make()
            return senders[pid](*arguments, **options)

        return self.wrap_sender(send)


def use_amqp(app: Celery, kind: type[HookedAMQP]) -> None:
    """Let an application declare and send by `kind`, put before a class of its own; what it has made is made again."""
    own: Any = symbol_by_name(app.amqp_cls)  # type: ignore[arg-type]
    if not issubclass(own, kind):
        name = f"{kind.__module__}:{kind.__qualname__}"
        app.amqp_cls = name if own is AMQP else type(own.__name__, (kind, own), {})  # type: ignore[assignment]
    forget_amqp(app)
