"""The broker dies, and comes back."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.place import Place


@dataclass(frozen=True, slots=True)
class BrokerKilled:
    """Kill the broker with SIGKILL, and start it again when the `with` ends.

    Attributes:
        keeps_data: whether it has its data then: Redis is set to sync each write, RabbitMQ does anyway.
    """

    keeps_data: bool = True

    @property
    def what(self) -> str:
        """What it does."""
        return f"the broker is killed and comes back with{'' if self.keeps_data else 'out'} its data"

    def prepared(self, place: Place) -> AbstractContextManager[None]:
        """Let it keep its data, if it is to."""
        return place.ground.durable() if self.keeps_data else nullcontext()

    @contextmanager
    def injected(self, place: Place) -> Iterator[None]:
        """Keep it dead until the `with` ends."""
        place.ground.kill()
        try:
            yield
        finally:
            place.ground.start_again(wiped=not self.keeps_data)
