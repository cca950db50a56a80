"""End a worker whose queues RabbitMQ has no room for, with one line that names the limit.

Celery ends with a traceback where a worker's own queue is refused. Where a queue of the delays is, it says "Native
delayed delivery will not be available" and the worker is ready, with a part of them: a delayed task is then returned to
its sender, or never arrives.
"""

from __future__ import annotations

import re
from typing import Any

from celery import bootsteps
from celery.exceptions import WorkerShutdown

from repot.config.delays import OF_A_WORKER, levels_of, queues_needed
from repot.config.queues import is_delayed
from repot.logs import get_logger
from repot.upstream.consumer_hooks import on_start_error
from repot.upstream.delayed_delivery import on_set_up_error, step_before
from repot.worker.configure import configured_with

log = get_logger(__name__)

#: RabbitMQ's words (`rabbit_amqqueue.erl` and its like), for a virtual host and, since 4.1, for a cluster.
_LIMIT = re.compile(
    r"cannot declare queue '(?P<queue>.*?)': (?P<limit>queue limit in .*? \((?P<most>\d+)\)) is reached"
)


class QueueLimitStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Looks at what refuses the start of a worker."""

    name = "repot queue limit"
    # that one may replace what this one listens to
    requires = (step_before, "repot.worker.delayed_delivery:DelayStep")

    def __init__(self, parent: Any, **options: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """Look at errors of every step, and of the one that swallows its own."""
        super().__init__(parent, **options)

        def call(error: BaseException) -> None:
            _end_at_limit(parent.app, error)

        on_start_error(parent, call)
        on_set_up_error(parent, call)


def _end_at_limit(app: Any, error: BaseException) -> None:  # noqa: ANN401 - Celery
    """End the worker if an error is that of the limit.

    Raises:
        WorkerShutdown: it is.
    """
    match = _LIMIT.search(str(error))
    if match is None:
        return
    queues = list(app.amqp.queues.consume_from.values())
    levels = levels_of(configured_with(app)) if any(map(is_delayed, queues)) else 0
    needs = queues_needed(queues, levels=levels)
    log.critical(
        "RabbitMQ has no room for the queue %r: %s. This deployment needs %d queues: %s, and %d for each further "
        "worker. Raise the limit (%s, or the plan of a service), or set a lower WORKER_DELAY_LEVELS for senders and "
        "workers (12 delay a task for 68 min at a time), or WORKER_QUEUE_TYPE=classic, with which workers hold tasks "
        "with an ETA",
        match["queue"],
        match["limit"],
        sum(needs.values()),
        ", ".join(f"{number} {what}" for what, number in needs.items() if number),
        OF_A_WORKER,
        """rabbitmqctl set_vhost_limits -p VHOST '{"max-queues": N}'""",
        extra={"action": "queue_limit_reached"},
    )
    raise WorkerShutdown(1) from error
