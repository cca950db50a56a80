"""The broker is short of memory and throws data away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.faults.unprepared import Unprepared

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from repot.chaos.place import Place


@dataclass(frozen=True, slots=True)
class Eviction(Unprepared):
    """Redis with an `allkeys` policy: lists of messages are keys like any others. RabbitMQ has no such thing."""

    what: str = "the broker is short of memory and throws keys away"

    def injected(self, place: Place) -> AbstractContextManager[None]:
        """Throw away all it holds, and keep it at its limit until the `with` ends; what is gone stays gone."""
        return place.ground.evicting()
