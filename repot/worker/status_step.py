"""Write the worker's status file once a second, from the consumer's event loop."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from celery import bootsteps

from repot.upstream.consumer_hooks import on_lost_connection
from repot.upstream.unconfirmed import send_events_unconfirmed, send_replies_unconfirmed
from repot.upstream.worker_state import is_stopping
from repot.worker.status_file import INTERVAL_S

if TYPE_CHECKING:
    from repot.worker.status_writer import StatusWriter


class StatusStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Writes the status file from the consumer's event loop."""

    name = "repot status file"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **options: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """Take the worker's writer, which is made before the worker's parts are."""
        # none where no file can be; Celery makes a step before it asks whether to include it
        writer: StatusWriter | None = getattr(c.controller, "repot_status_writer", None)
        self._timer_entry: Any = None
        if writer:
            self._writer = writer
            send_events_unconfirmed(c)
            on_lost_connection(c, writer.count_error)
        super().__init__(c, **options)

    def include_if(self, c: Any) -> bool:  # noqa: ANN401
        """Return whether the worker has a writer."""
        return hasattr(c.controller, "repot_status_writer")

    def start(self, c: Any) -> None:  # noqa: ANN401
        """Begin to write: the consumer has its queues."""
        send_replies_unconfirmed(c)
        self._writer.consuming(c)
        if c.hub is None:
            # gevent and eventlet: the timer's greenlet runs in their own loop. The consumer's loop cannot be used: with
            # heartbeats more often than its two seconds, its wait for a message does not end
            self._timer_entry = c.timer.call_repeatedly(INTERVAL_S, partial(self._writer.refresh, c))

    def register_with_event_loop(self, c: Any, hub: Any) -> None:  # noqa: ANN401
        """Write each second from the event loop."""
        hub.call_repeatedly(INTERVAL_S, partial(self._writer.refresh, c))

    def stop(self, c: Any) -> None:  # noqa: ANN401
        """Report a lost connection, or that the worker stops."""
        if self._timer_entry is not None:
            c.timer.cancel(self._timer_entry)
            self._timer_entry = None
        if is_stopping(c):
            self._writer.stopping()
        else:
            self._writer.connecting()
