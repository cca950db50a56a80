"""Bytes come in crumbs."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repot.chaos.faults.link import Range, StreamFault, between

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.place import Place


@dataclass(frozen=True, slots=True)
class Slicer(StreamFault):
    """Cut bytes into slices of this size, half as much or half again, with a pause after each.

    Within these sizes Toxiproxy rolls dice of its own, which have no seed.
    """

    slice_bytes: Range = field(default=(2, 16), kw_only=True)
    pause_us: Range = field(default=(500, 5000), kw_only=True)

    @property
    def what(self) -> str:
        """What it does."""
        slices, pauses = between(self.slice_bytes, "bytes"), between(self.pause_us, "µs")
        return f"bytes {self.way} come in slices of about {slices}, {pauses} apart"

    @contextmanager
    def injected(self, place: Place) -> Iterator[None]:
        """Slice until the `with` ends."""
        size = place.rng.randint(*self.slice_bytes)
        amounts = {"average_size": size, "size_variation": size // 2, "delay": place.rng.randint(*self.pause_us)}
        with self.link(place).spoiled("slicer", self.streams, amounts):
            yield
