"""Delay the close of connections."""

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
class SlowClose(StreamFault):
    """Delay a close on its way to the other end: to the broker for the stream `upstream`."""

    delay_ms: Range = field(default=(2000, 4000), kw_only=True)

    @property
    def description(self) -> str:
        """Return what the fault does, for reports."""
        return f"closes of connections {self.way} are delayed by {between(self.delay_ms, 'ms')}"

    @contextmanager
    def injected(self, context: FaultContext) -> Iterator[None]:
        """Delay closes until the `with` ends."""
        with self.link(context).with_toxic("slow_close", self.streams, {"delay": context.rng.randint(*self.delay_ms)}):
            yield


SCENARIOS = (
    Scenario(
        "slow-close",
        "Closes of connections are delayed",
        "By itself it has no effect on the task.",
        SlowClose(),
        Phase.STARTED,
        works_s=1,
    ),
)
