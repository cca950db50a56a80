"""Keep the count of held messages right on each of a worker's connections (`repot/upstream/prefetch_count.py`)."""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from repot.upstream.prefetch_count import release_failed_acks
from repot.upstream.prefetch_mode import fit_prefetch
from repot.worker.batches import reserve_batches


class PrefetchStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Lets a worker take messages from any queue of RabbitMQ, and more of them after an ACK that failed."""

    name = "repot prefetch"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **options: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """Let the worker ask for the right kind and number of messages, before it connects."""
        super().__init__(parent, **options)
        fit_prefetch(parent)
        reserve_batches(parent)

    def start(self, c: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """Change the count of the new channel."""
        release_failed_acks(c.task_consumer.channel)
