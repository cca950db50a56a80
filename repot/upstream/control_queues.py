"""The queues of Celery's remote control and events, of a kind that every RabbitMQ takes.

Celery before 5.6 has no settings for them: they are neither durable nor exclusive, which RabbitMQ 4.3 denies; and a
worker's own is gone with its connection. In 5.6 the settings exist, and their defaults are of the same kind. Since 5.7
they are exclusive.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from celery.app.control import Control
from celery.events.receiver import EventReceiver
from kombu.pidbox import Mailbox

from repot.upstream.collector import celery_options
from repot.upstream.point import Failure, Point
from repot.upstream.wrapping import wrap_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from kombu import Queue

_BREAKS = "RabbitMQ 4.3 denies the queues of control commands and events, and a worker never becomes ready."

POINTS = (
    Point("celery.app.control:Control.__init__", Failure.SILENT, _BREAKS, contains=("self.mailbox = self.Mailbox(",)),
    Point("kombu.pidbox:Mailbox.get_queue", Failure.SILENT, _BREAKS, "(self, hostname)"),
    Point("kombu.pidbox:Mailbox.get_reply_queue", Failure.SILENT, _BREAKS, "(self)"),
    Point(
        "kombu.pidbox:Node.Consumer",
        Failure.SILENT,
        _BREAKS,
        contains=("queue = self.mailbox.get_queue(self.hostname)",),
    ),
    Point("kombu.pidbox:Mailbox.__call__", Failure.SILENT, _BREAKS, contains=("bound = copy(self)",)),
    Point(
        "celery.events.receiver:EventReceiver.__init__",
        Failure.SILENT,
        _BREAKS,
        contains=("self.queue = Queue(",),
    ),
)

_HAVE_SETTINGS = "queue_exclusive" in inspect.signature(Mailbox.__init__).parameters


def settings_to_make_exclusive() -> frozenset[str]:
    """Return the settings by which such queues become exclusive; those alone that are not by default."""
    names = ("control_queue_exclusive", "event_queue_exclusive")
    options = celery_options()
    return frozenset(name for name in names if name in options and not options[name].default)


def supply_kinds() -> None:
    """Let Celery before 5.6 declare the queues of replies and events as exclusive, and a worker's as durable if set."""
    if not _HAVE_SETTINGS:
        wrap_once(Mailbox, "get_reply_queue", _exclusive)
        wrap_once(EventReceiver, "__init__", _with_exclusive_queue)
        wrap_once(Control, "__init__", _with_durable_queue)


def _exclusive(make: Callable[[Any], Queue]) -> Callable[[Any], Queue]:
    def get_reply_queue(mailbox: Any) -> Queue:
        queue = make(mailbox)
        queue.exclusive = True
        return queue

    return get_reply_queue


def _with_exclusive_queue(init: Callable[..., None]) -> Callable[..., None]:
    def __init__(receiver: Any, *arguments: Any, **options: Any) -> None:  # noqa: N807 - Celery's
        init(receiver, *arguments, **options)
        receiver.queue.exclusive = True

    return __init__


def _with_durable_queue(init: Callable[..., None]) -> Callable[..., None]:
    def __init__(control: Any, app: Any = None) -> None:  # noqa: N807 - Celery's
        init(control, app)
        if app.conf.get("control_queue_durable"):
            get_queue = control.mailbox.get_queue

            def durable(hostname: str) -> Queue:
                queue: Queue = get_queue(hostname)
                queue.durable, queue.auto_delete = True, False
                return queue

            control.mailbox.get_queue = durable

    return __init__
