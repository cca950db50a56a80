"""Delay bytes."""

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
class Latency(StreamFault):
    """Delay all bytes by a latency, with a jitter that differs for each chunk.

    The run's seed decides both amounts. Toxiproxy draws the jitter of a chunk itself, without a seed.
    """

    latency_ms: Range = field(default=(300, 900), kw_only=True)
    jitter_ms: Range = field(default=(0, 250), kw_only=True)

    @property
    def description(self) -> str:
        """Return what the fault does, for reports."""
        return f"bytes {self.way} are delayed by {between(self.latency_ms, 'ms')}, ± {between(self.jitter_ms, 'ms')}"

    @contextmanager
    def injected(self, context: FaultContext) -> Iterator[None]:
        """Delay bytes until the `with` ends."""
        amounts = {"latency": context.rng.randint(*self.latency_ms), "jitter": context.rng.randint(*self.jitter_ms)}
        with self.link(context).with_toxic("latency", self.streams, amounts):
            yield


SCENARIOS = (
    Scenario(
        "latency",
        "Every byte is delayed, with jitter",
        "Slow is not broken.",
        Latency(latency_ms=(50, 150), jitter_ms=(0, 50)),
        Phase.STARTED,
        works_s=1,
    ),
)
