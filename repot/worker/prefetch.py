"""The worker's part in what it has in hand: each of its connections counts anew."""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from repot.brokers.prefetch import free_places


class PrefetchStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Lets a worker ask for more where an ACK has failed."""

    name = "repot prefetch"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, c: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """The consumer has a channel."""
        free_places(c.task_consumer.channel)
