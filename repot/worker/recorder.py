"""Writes deliveries and runs into the journal, from Celery's own signals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import signals

from repot.worker.journal import DELIVERED, ENDED, READY, STARTED, Journal

if TYPE_CHECKING:
    from pathlib import Path


def record(path: Path) -> None:
    """Record every delivery and run of this process and its children from now on."""
    journal = Journal(path)

    def ready(sender: Any, **_: Any) -> None:  # noqa: ANN401 - Celery's signal arguments
        journal.write(READY, sender.hostname)

    def delivered(sender: Any, request: Any, **_: Any) -> None:  # noqa: ANN401
        redelivered = bool(request.delivery_info.get("redelivered"))
        journal.write(DELIVERED, sender.hostname, request.id, name=request.name, redelivered=redelivered)

    def started(task_id: str, task: Any, **_: Any) -> None:  # noqa: ANN401
        journal.write(STARTED, task.request.hostname, task_id, name=task.name, retries=task.request.retries)

    def ended(task_id: str, task: Any, state: str, **_: Any) -> None:  # noqa: ANN401
        journal.write(ENDED, task.request.hostname, task_id, state=state)

    # weak references would drop these local functions at once
    signals.worker_ready.connect(ready, weak=False, dispatch_uid="repot-ready")
    signals.task_received.connect(delivered, weak=False, dispatch_uid="repot-delivered")
    signals.task_prerun.connect(started, weak=False, dispatch_uid="repot-started")
    signals.task_postrun.connect(ended, weak=False, dispatch_uid="repot-ended")
