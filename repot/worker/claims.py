"""Keep the messages of running tasks when the connection to the broker is lost, where the broker permits that.

Celery lets a running task go on when the connection is lost (but for
`worker_cancel_long_running_tasks_on_connection_loss`), and closes the channel, which gives back all messages: another
worker begins the same task at once. A claim (`repot/brokers/redis/claims.py`) outlives the connection.

A pool of threads or greenlets begins no task whose message went back: it may run elsewhere already.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from repot.brokers.claiming import keep_running, may_begin, withdraw
from repot.upstream.pool_starts import ask_before_start
from repot.upstream.worker_state import active_requests, pool_kind

# the stubs do not know it
_RUN: int = bootsteps.RUN  # type: ignore[attr-defined]


class ClaimStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Tells each of a worker's channels which messages are those of running tasks."""

    name = "repot claims"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **options: Any) -> None:  # noqa: ANN401 - celery's
        """Ask before a task begins, in a pool that runs it in this process."""
        super().__init__(c, **options)
        self._asks = False

    def start(self, c: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """Tell the new channel."""

        def is_running(message: Any) -> bool:  # noqa: ANN401 - kombu's
            # a worker that ends gives all back
            goes_on = c.blueprint.state == _RUN and not c.app.conf.worker_cancel_long_running_tasks_on_connection_loss
            if not goes_on:
                return False
            return any(request.message is message for request in active_requests()) or not withdraw(message)

        if not self._asks and pool_kind(c) != "prefork":
            ask_before_start(c.pool, lambda request: may_begin(request.message))
            self._asks = True
        keep_running(c.task_consumer.channel, c.hostname, is_running)
