"""Treat a message that a move may have sent twice as a redelivered one.

A mover that died marks the second copy, but for the broker each is a first delivery. Celery looks for a stored success
only where a delivery is marked as redelivered, and so does whatever else of repot asks whether a task may have run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import bootsteps

from repot.brokers.headers import MAYBE_TWICE_HEADER
from repot.upstream.consumer_hooks import wrap_task_handler

if TYPE_CHECKING:
    from collections.abc import Callable


class MovedMessagesStep(bootsteps.Step):  # type: ignore[misc]
    """Marks the messages before a handler asks whether they were redelivered."""

    name = "repot moved messages"
    # after those whose handlers ask whether a message was redelivered
    requires = ("repot.worker.expiry_watch:ExpiryStep",)

    def __init__(self, c: Any, **options: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """Wrap the handler of messages."""
        wrap_task_handler(c, _marking)
        super().__init__(c, **options)


def _marking(create: Callable[[], Callable[[Any], None]]) -> Callable[[Any], None]:
    handle = create()

    def on_task_received(message: Any) -> None:  # noqa: ANN401 - kombu's
        if (message.headers or {}).get(MAYBE_TWICE_HEADER):
            message.delivery_info["redelivered"] = True
        handle(message)

    return on_task_received
