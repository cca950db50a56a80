"""Keep the messages of running tasks when the connection to the broker is lost, where the broker permits that.

Celery lets a running task go on when the connection is lost (but for
`worker_cancel_long_running_tasks_on_connection_loss`, where the pool can), and closes the channel, which gives back all
messages: another worker begins the same task at once. A claim (`repot/brokers/redis/claims.py`) outlives its
connection.

A pool begins no task whose message went back: it may run elsewhere already.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from repot.brokers.claiming import is_in_hand, keep_running, may_begin, withdraw
from repot.upstream.pool_starts import ask_before_handing_over, ask_before_start
from repot.upstream.worker_state import active_requests, can_cancel, is_stopping, pool_kind


class ClaimStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Tells each of a worker's channels which messages are those of running tasks."""

    name = "repot claims"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **options: Any) -> None:  # noqa: ANN401 - celery's
        """Have no pool that asks yet."""
        super().__init__(c, **options)
        self._asks = False

    def start(self, c: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """Tell the new channel."""

        def is_running(message: Any) -> bool:  # noqa: ANN401 - kombu's
            # a worker that ends gives all back
            if is_stopping(c) or self._is_cancelled(c):
                return False
            return any(request.message is message for request in active_requests()) or not withdraw(message)

        if not self._asks:
            self._asks = True
            if pool_kind(c) == "prefork":
                ask_before_handing_over(c.pool, lambda request: is_in_hand(request.message))
            else:
                ask_before_start(c.pool, lambda request: may_begin(request.message))
        keep_running(c.task_consumer.channel, c.hostname, is_running)

    def _is_cancelled(self, c: Any) -> bool:  # noqa: ANN401 - celery's Consumer
        """Return whether running tasks end with the connection. A message must not go back while its task runs on."""
        return bool(c.app.conf.worker_cancel_long_running_tasks_on_connection_loss) and can_cancel(c.pool)
