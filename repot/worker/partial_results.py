"""Keep results over a lost connection: of tasks that run meanwhile, and those that come in pieces.

`repot/upstream/running_jobs.py` and `result_handler.py` say why they would be lost.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from repot.upstream.result_handler import PartialResults
from repot.upstream.running_jobs import keep_running_jobs


class PartialResultsStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Keeps partly read results over a lost connection; only the prefork pool reads in pieces."""

    name = "repot partial results"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **options: Any) -> None:  # noqa: ANN401 - celery's Consumer
        """Keep nothing partly read yet: the pool starts after the steps are made."""
        keep_running_jobs()
        self._partial: PartialResults | None = None
        super().__init__(c, **options)

    def start(self, c: Any) -> None:  # noqa: ANN401
        """Keep results from now on: the pool exists, and its results are not read before the event loop begins."""
        if self._partial is None and c.hub is not None:
            self._partial = PartialResults.of(c.pool)

    def stop(self, c: Any) -> None:  # noqa: ANN401
        """Put the readers back: a worker that leaves before it is connected again reads results to the end."""
        self._put_back(c.hub)

    def register_with_event_loop(self, c: Any, hub: Any) -> None:  # noqa: ANN401, ARG002
        """Put the readers back over those that the pool has registered."""
        self._put_back(hub)

    def _put_back(self, hub: Any) -> None:  # noqa: ANN401
        if self._partial is not None:
            self._partial.put_back(hub)
