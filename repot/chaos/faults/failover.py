"""The server in charge is lost, and another takes over."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.place import Place


@dataclass(frozen=True, slots=True)
class Failover:
    """Kill the server in charge of the queue; links lead to its heir, as a load balancer or Sentinel has it.

    Attributes:
        lagging: whether the heir knows nothing of what happened since the workers connected.
    """

    lagging: bool = False

    @property
    def what(self) -> str:
        """What it does."""
        return f"the broker fails over to a server that {'lags behind' if self.lagging else 'is in step'}"

    def prepared(self, place: Place) -> AbstractContextManager[None]:
        """Keep the heir from learning, if it is to lag."""
        return place.ground.lagging() if self.lagging else nullcontext()

    @contextmanager
    def injected(self, place: Place) -> Iterator[None]:
        """Lead everybody to the heir, for good; give it a spare again when the `with` ends."""
        try:
            place.ground.fail_over(place.queue)
            for link in (place.link, place.front):
                link.lead_to(place.ground.port)
            yield
        finally:
            place.ground.mend()
