"""Bytes are late."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repot.chaos.faults.link import Range, StreamFault, between

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.place import Place


@dataclass(frozen=True, slots=True)
class Latency(StreamFault):
    """Delay all bytes by as much, give or take a jitter that is another for each piece.

    Both amounts are the run's; within the jitter Toxiproxy rolls dice of its own, which
    have no seed.
    """

    latency_ms: Range = field(default=(300, 900), kw_only=True)
    jitter_ms: Range = field(default=(0, 250), kw_only=True)

    @property
    def what(self) -> str:
        """What it does."""
        return f"bytes {self.way} are {between(self.latency_ms, 'ms')} late, ± {between(self.jitter_ms, 'ms')}"

    @contextmanager
    def injected(self, place: Place) -> Iterator[None]:
        """Delay bytes until the `with` ends."""
        amounts = {"latency": place.rng.randint(*self.latency_ms), "jitter": place.rng.randint(*self.jitter_ms)}
        with self.link(place).spoiled("latency", self.streams, amounts):
            yield
