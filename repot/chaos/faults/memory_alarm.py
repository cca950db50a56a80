"""The broker is short of memory and refuses what would need more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.faults.unprepared import Unprepared

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from repot.chaos.place import Place


@dataclass(frozen=True, slots=True)
class MemoryAlarm(Unprepared):
    """RabbitMQ blocks connections that publish; Redis refuses commands that write."""

    what: str = "the broker is short of memory and takes nothing new"

    def injected(self, place: Place) -> AbstractContextManager[None]:
        """Keep it short until the `with` ends."""
        return place.ground.short_of_memory()
