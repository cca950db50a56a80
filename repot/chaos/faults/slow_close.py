"""Connections close late."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repot.chaos.faults.link import Range, StreamFault, between

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.place import Place


@dataclass(frozen=True, slots=True)
class SlowClose(StreamFault):
    """Let the other end learn late that one has closed a connection: the broker, if the stream is that to it."""

    delay_ms: Range = field(default=(2000, 4000), kw_only=True)

    @property
    def what(self) -> str:
        """What it does."""
        return f"closes of connections {self.way} are {between(self.delay_ms, 'ms')} late"

    @contextmanager
    def injected(self, place: Place) -> Iterator[None]:
        """Delay closes until the `with` ends."""
        with self.link(place).spoiled("slow_close", self.streams, {"delay": place.rng.randint(*self.delay_ms)}):
            yield
