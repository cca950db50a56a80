"""The one place where Celery gets the producer of a task: `Celery.producer_or_acquire`.

`send_task`, `group` and `chord` ask it (`celery/app/base.py`, `celery/canvas.py`), and a caller may give one in each
call; there is no way to say it for a block of calls. All that send many messages at once, a group, the header of a
chord, chunks and the step of a chain that is a group, end in `group._apply_tasks`.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from celery.canvas import group

from repot.upstream.point import Failure, Point
from repot.upstream.wrapping import wrap_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

_BREAKS = "In a confirm window, each message waits for its own confirm."
_BREAKS_GROUPS = "Each message of a group waits for its own confirm."

POINTS = (
    Point("celery.app.base:Celery.producer_or_acquire", Failure.LOUD, _BREAKS, "(self, producer=None)"),
    Point(
        "celery.app.base:Celery.send_task",
        Failure.SILENT,
        _BREAKS,
        contains=("with self.producer_or_acquire(producer) as P:",),
    ),
    Point(
        "celery.canvas:group._apply_tasks",
        Failure.SILENT,
        _BREAKS_GROUPS,
        contains=(
            "def _apply_tasks(self, tasks, producer=None, app=None, p=None,",
            "with app.producer_or_acquire(producer) as producer:",
            "sig.apply_async(producer=producer,",
        ),
    ),
    Point(
        "celery.canvas:group.apply_async",
        Failure.SILENT,
        _BREAKS_GROUPS,
        contains=("results = list(self._apply_tasks(tasks, producer, app, p,",),
    ),
)


def choose_producer(app: Any, choose: Callable[[], Any]) -> None:
    """Let an application send by `choose()`, where that is not None and the caller gives no producer; once."""
    if "producer_or_acquire" in vars(app):
        return
    acquire = app.producer_or_acquire

    def producer_or_acquire(producer: Any = None) -> Any:
        return acquire(choose() if producer is None else producer)

    app.producer_or_acquire = producer_or_acquire


def send_groups_within(block: Callable[[Any], AbstractContextManager[None]]) -> None:
    """Let each group be sent within `block(application)`, unless its caller gives a producer; once for each process."""

    def make(send: Any) -> Callable[..., Iterator[Any]]:
        def apply_tasks(self: Any, tasks: Any, producer: Any = None, app: Any = None, *rest: Any, **given: Any) -> Any:
            app = app or self.app
            with nullcontext() if producer else block(app):
                yield from send(self, tasks, producer, app, *rest, **given)

        return apply_tasks

    wrap_once(group, "_apply_tasks", make)
