"""The broker gives a message up that was returned too often."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from repot.chaos.place import Place


@dataclass(frozen=True, slots=True)
class DeliveryLimit:
    """Let a quorum queue drop, or dead-letter, what came back more often than this; 20 times by default since 4.0."""

    deliveries: int = 3

    @property
    def what(self) -> str:
        """What it does."""
        return f"the queue gives a message up after {self.deliveries} returns"

    def prepared(self, place: Place) -> AbstractContextManager[None]:
        """Set the limit; a policy has its effect at once."""
        return place.ground.giving_up(place.queue, self.deliveries)

    def injected(self, place: Place) -> AbstractContextManager[None]:
        """Nothing more: the task that returns meets it."""
        del place
        return nullcontext()
