"""Delays that Celery itself has RabbitMQ keep.

Bugs of Celery since 5.5 (`Celery.send_task` in `celery/app/base.py`), where it detects quorum queues: it delays behind
topic exchanges alone, which send a message to every queue bound with its key; it takes `int(countdown)`, and kombu
refuses a delay of 0 s (ValueError, so that `Task.retry` rejects the message); and a task routed by an exchange alone
raises KeyError. Celery 5.4 delays nothing.

There is no setting to turn it off. Workers detect quorum queues by the same function under another name, which
has to go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.app import base

from repot.upstream.point import Failure, Point
from repot.upstream.wrapping import wrap_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

_SENDING = "A delay under a second raises ValueError, and a retry of it rejects its message."

POINTS = (
    Point(
        "celery.app.base:Celery.send_task",
        Failure.SILENT,
        _SENDING,
        contains=(
            "detect_quorum_queues(self, driver_type)[0]:",
            "calculate_routing_key(int(countdown), routing_key)",
        ),
        since="5.5",
    ),
    Point(
        "celery.utils.quorum_queues:detect_quorum_queues",
        Failure.LOUD,
        _SENDING,
        contains=('return False, ""',),
        since="5.5",
    ),
)


def leave_delays_to(is_delayed_by_us: Callable[[Celery], bool]) -> None:
    """Keep `send_task` from delaying, for the applications that repot delays for."""

    def undetected(detect: Callable[..., Any]) -> Callable[..., Any]:
        def detect_quorum_queues(app: Celery, driver_type: str) -> Any:
            return (False, "") if is_delayed_by_us(app) else detect(app, driver_type)

        return detect_quorum_queues

    if hasattr(base, "detect_quorum_queues"):
        wrap_once(base, "detect_quorum_queues", undetected)
