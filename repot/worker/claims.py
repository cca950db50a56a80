"""Keep the messages of running tasks when the connection to the broker is lost, where the broker permits that.

Celery lets a running task go on when the connection is lost (but for
`worker_cancel_long_running_tasks_on_connection_loss`), and closes the channel, which gives back all messages: another
worker begins the same task at once. A claim (`repot/brokers/redis/claims.py`) outlives the connection.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from repot.brokers.claiming import keep_running
from repot.upstream.worker_state import active_requests

# the stubs do not know it
_RUN: int = bootsteps.RUN  # type: ignore[attr-defined]


class ClaimStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Tells each of a worker's channels which messages are those of running tasks."""

    name = "repot claims"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, c: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """Tell the new channel."""

        def is_running(message: Any) -> bool:  # noqa: ANN401 - kombu's
            # a worker that ends gives all back
            goes_on = c.blueprint.state == _RUN and not c.app.conf.worker_cancel_long_running_tasks_on_connection_loss
            return goes_on and any(request.message is message for request in active_requests())

        keep_running(c.task_consumer.channel, c.hostname, is_running)
