"""Keep the worker's connections while its event loop is blocked (`repot/upstream/heartbeats.py`)."""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from repot.upstream.heartbeats import Heartbeats
from repot.upstream.soft_shutdown import wrap_soft_shutdown
from repot.upstream.worker_state import is_stopping, pool_kind
from repot.worker.status_file import SOLO


class HeartbeatStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Lets a thread send heartbeats during a task of a solo pool, and while a stopping worker waits for its tasks."""

    name = "repot heartbeats"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **options: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """Change the worker, and its pool if that has tasks in the event loop."""
        self._heartbeats = Heartbeats()
        wrap_soft_shutdown(c.controller, self._heartbeats.blocked())
        if pool_kind(c.controller) == SOLO:
            c.pool.on_apply = self._heartbeats.blocked()(c.pool.on_apply)
        super().__init__(c, **options)

    def include_if(self, c: Any) -> bool:  # noqa: ANN401
        """Return whether the event loop sends the heartbeats; without one a thread or greenlet of Celery's does."""
        return c.hub is not None

    def start(self, c: Any) -> None:  # noqa: ANN401
        """Keep the new connections."""
        links = (c.connection, getattr(c.event_dispatcher, "connection", None))
        self._heartbeats.keep(link for link in links if link is not None and link.connected)

    def stop(self, c: Any) -> None:  # noqa: ANN401
        """Let go of lost connections; in a shutdown, keep the one whose messages are not acknowledged yet."""
        if is_stopping(c) and c.connection is not None:
            self._heartbeats.keep_only(c.connection)
        else:
            self._heartbeats.keep(())

    def shutdown(self, c: Any) -> None:  # noqa: ANN401, ARG002
        """End the thread."""
        self._heartbeats.end()
