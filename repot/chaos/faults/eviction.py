"""The broker is short of memory and throws data away."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repot.chaos.place import Place


@dataclass(frozen=True, slots=True)
class Eviction:
    """Redis with an `allkeys` policy: lists of messages are keys like any others. RabbitMQ has no such thing."""

    what: str = "the broker is short of memory and throws keys away"

    def prepared(self, place: Place) -> AbstractContextManager[None]:
        """Nothing to prepare."""
        del place
        return nullcontext()

    def injected(self, place: Place) -> AbstractContextManager[None]:
        """Throw away all it holds, and keep it at its limit until the `with` ends; what is gone stays gone."""
        return place.ground.evicting()
