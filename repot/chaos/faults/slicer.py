"""Cut the stream into small slices."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repot.chaos.faults.link_fault import Range, StreamFault, between
from repot.chaos.instruments.failpoints import Phase
from repot.chaos.scenarios.scenario import Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.faults.context import FaultContext


@dataclass(frozen=True, slots=True)
class Slicer(StreamFault):
    """Cut the stream into slices of this size ± 50 %, with a pause after each.

    Toxiproxy draws the size of a slice itself, without a seed.
    """

    slice_bytes: Range = field(default=(2, 16), kw_only=True)
    pause_us: Range = field(default=(500, 5000), kw_only=True)

    @property
    def description(self) -> str:
        """Return what the fault does, for reports."""
        slices, pauses = between(self.slice_bytes, "bytes"), between(self.pause_us, "µs")
        return f"bytes {self.way} arrive in slices of about {slices}, {pauses} apart"

    @contextmanager
    def injected(self, context: FaultContext) -> Iterator[None]:
        """Slice until the `with` ends."""
        size = context.rng.randint(*self.slice_bytes)
        amounts = {"average_size": size, "size_variation": size // 2, "delay": context.rng.randint(*self.pause_us)}
        with self.link(context).with_toxic("slicer", self.streams, amounts):
            yield


SCENARIOS = (
    Scenario(
        "slicer",
        "Bytes arrive in small slices",
        "Clients and brokers reassemble frames.",
        Slicer(),
        Phase.STARTED,
        works_s=1,
    ),
)
