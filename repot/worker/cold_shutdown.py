"""Cancel also a task that begins at the moment of a cold shutdown (`repot/upstream/cold_shutdown.py`)."""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from repot.upstream.cold_shutdown import cancel_beginning_tasks


class ColdShutdownStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Lets a worker that gets SIGQUIT leave without the end of a task that has just begun."""

    name = "repot cold shutdown"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **options: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """Change the consumer, of which a worker has one for all its connections."""
        cancel_beginning_tasks(c)
        super().__init__(c, **options)
