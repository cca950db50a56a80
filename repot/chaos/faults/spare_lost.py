"""A server is lost that was not in charge."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.faults.unprepared import Unprepared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.place import Place


@dataclass(frozen=True, slots=True)
class SpareLost(Unprepared):
    """Kill a replica, or a member of a quorum that does not lead it: what is replicated is to go on."""

    what: str = "a spare server of the broker is lost"

    @contextmanager
    def injected(self, place: Place) -> Iterator[None]:
        """Do without it until the `with` ends."""
        try:
            place.ground.lose_spare(place.queue)
            yield
        finally:
            place.ground.mend()
