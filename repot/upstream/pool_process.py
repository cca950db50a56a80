"""The place of a process in billiard's pool: a process that replaces another has its number."""

from __future__ import annotations

from billiard.process import current_process

from repot.upstream.point import Failure, Point

POINTS = (
    Point(
        "billiard.pool:Pool._create_worker_process",
        Failure.SILENT,
        "Tasks of a process pool are not counted, and a lost result is not noticed.",
        contains=("w.index = i",),
    ),
    Point("billiard.process:current_process", Failure.LOUD, "A worker does not start.", "()"),
)


def process_index() -> int | None:
    """Return the number of this process in its pool, from 0; None for a process of no pool."""
    index: int | None = getattr(current_process(), "index", None)
    return index
