"""Which workers of a side run, by their last reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.worker.status_file import WorkerPhase

if TYPE_CHECKING:
    from repot.routing.side import Side
    from repot.routing.tally import Tally, WorkerState

#: A worker reports once a second, and one that has lost its broker for a moment reads nothing.
SILENT_S = 10.0


def reporting(tally: Tally, side: Side) -> list[WorkerState]:
    """Return the workers of a side that run, by their last reports."""
    now = tally.now()
    return [
        one
        for one in tally.workers()
        if one.side == side and one.phase == WorkerPhase.RUNNING and now - one.reported_at < SILENT_S
    ]
