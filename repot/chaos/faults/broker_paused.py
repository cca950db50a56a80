"""The broker hangs: its connections stay open, and nobody answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.faults.unprepared import Unprepared

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from repot.chaos.place import Place


@dataclass(frozen=True, slots=True)
class BrokerPaused(Unprepared):
    """Stop every process of the broker (SIGSTOP); the kernel still takes what is sent to it."""

    what: str = "the broker stands still"

    def injected(self, place: Place) -> AbstractContextManager[None]:
        """Keep it still until the `with` ends."""
        return place.ground.paused()
