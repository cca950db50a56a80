"""The one place where Celery gets the producer of a task: `Celery.producer_or_acquire`.

`send_task`, `group` and `chord` ask it (`celery/app/base.py`, `celery/canvas.py`), and a caller may give one in each
call; there is no way to say it for a block of calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repot.upstream.point import Failure, Point

if TYPE_CHECKING:
    from collections.abc import Callable

_BREAKS = "In a confirm window, each message waits for its own confirm."

POINTS = (
    Point("celery.app.base:Celery.producer_or_acquire", Failure.LOUD, _BREAKS, "(self, producer=None)"),
    Point(
        "celery.app.base:Celery.send_task",
        Failure.SILENT,
        _BREAKS,
        contains=("with self.producer_or_acquire(producer) as P:",),
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
