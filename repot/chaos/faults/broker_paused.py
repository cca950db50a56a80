"""The broker hangs: its connections stay open, and nobody answers."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repot.chaos.place import Place


@dataclass(frozen=True, slots=True)
class BrokerPaused:
    """Stop every process of the broker (SIGSTOP); the kernel still takes what is sent to it."""

    what: str = "the broker stands still"

    def prepared(self, place: Place) -> AbstractContextManager[None]:
        """Nothing to prepare."""
        del place
        return nullcontext()

    def injected(self, place: Place) -> AbstractContextManager[None]:
        """Keep it still until the `with` ends."""
        return place.ground.paused()
