"""The link is narrow."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repot.chaos.faults.link import Range, StreamFault, between

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.place import Place


@dataclass(frozen=True, slots=True)
class Bandwidth(StreamFault):
    """Let each connection carry only so many bytes in a second."""

    rate_kb_s: Range = field(default=(1, 4), kw_only=True)

    @property
    def what(self) -> str:
        """What it does."""
        return f"bytes {self.way} pass at {between(self.rate_kb_s, 'KB/s')}"

    @contextmanager
    def injected(self, place: Place) -> Iterator[None]:
        """Keep the link narrow until the `with` ends."""
        with self.link(place).spoiled("bandwidth", self.streams, {"rate": place.rng.randint(*self.rate_kb_s)}):
            yield
