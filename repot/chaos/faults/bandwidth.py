"""Limit the bandwidth of a link."""

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
class Bandwidth(StreamFault):
    """Limit the bytes per second of each connection."""

    rate_kb_s: Range = field(default=(1, 4), kw_only=True)

    @property
    def description(self) -> str:
        """Return what the fault does, for reports."""
        return f"bytes {self.way} pass at {between(self.rate_kb_s, 'KB/s')}"

    @contextmanager
    def injected(self, context: FaultContext) -> Iterator[None]:
        """Limit the bandwidth until the `with` ends."""
        with self.link(context).with_toxic("bandwidth", self.streams, {"rate": context.rng.randint(*self.rate_kb_s)}):
            yield


SCENARIOS = (
    Scenario(
        "bandwidth", "The link has little bandwidth", "Slow is not broken.", Bandwidth(), Phase.STARTED, works_s=1
    ),
)
