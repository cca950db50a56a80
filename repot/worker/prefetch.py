"""Keep the count of held messages right on each of a worker's connections (`repot/upstream/prefetch_count.py`)."""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from repot.upstream.prefetch_count import release_failed_acks


class PrefetchStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Lets a worker take more messages after an ACK that failed."""

    name = "repot prefetch"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, c: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """Change the count of the new channel."""
        release_failed_acks(c.task_consumer.channel)
