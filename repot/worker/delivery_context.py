"""Handle a delivery in the context of its sender: log lines of the worker's main process have the ids of the trace.

The run itself has a span, in a process of the pool (`repot/worker/spans.py`). The main process logs what happens to the
message around it: received, refused, revoked, its process lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import bootsteps

from repot.telemetry.provider import context_of_sender
from repot.upstream.consumer_hooks import wrap_task_handler

if TYPE_CHECKING:
    from collections.abc import Callable


class DeliveryContextStep(bootsteps.Step):  # type: ignore[misc]
    """Wraps the handlers of messages that log; one that is not due goes back before it has a context."""

    name = "repot delivery context"
    requires = ("repot.worker.moved_messages:MovedMessagesStep",)

    def __init__(self, c: Any, **options: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """Wrap the handler of messages."""
        wrap_task_handler(c, _in_context)
        super().__init__(c, **options)


def _in_context(create: Callable[[], Callable[[Any], None]]) -> Callable[[Any], None]:
    handle = create()

    def on_task_received(message: Any) -> None:  # noqa: ANN401 - kombu's
        with context_of_sender(message.headers):
            handle(message)

    return on_task_received
