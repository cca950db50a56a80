"""Somebody deletes the queue."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.place import Place


@dataclass(frozen=True, slots=True)
class QueueDeleted:
    """Delete the subject's queue with what waits in it. Nobody but its users, who declare it, can bring it back."""

    what: str = "the queue is deleted"

    def prepared(self, place: Place) -> AbstractContextManager[None]:
        """Nothing to prepare."""
        del place
        return nullcontext()

    @contextmanager
    def injected(self, place: Place) -> Iterator[None]:
        """Delete it once; what was in it is gone for good."""
        place.ground.delete_queue(place.queue)
        yield
