"""Somebody deletes the queue."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.faults.unprepared import Unprepared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.place import Place


@dataclass(frozen=True, slots=True)
class QueueDeleted(Unprepared):
    """Delete the subject's queue with what waits in it. Nobody but its users, who declare it, can bring it back."""

    what: str = "the queue is deleted"

    @contextmanager
    def injected(self, place: Place) -> Iterator[None]:
        """Delete it once; what was in it is gone for good."""
        place.ground.delete_queue(place.queue)
        yield
