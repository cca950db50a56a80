"""Reset connections."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.faults.link_fault import BOTH, LinkFault
from repot.chaos.instruments.failpoints import Phase
from repot.chaos.scenarios.scenario import LINK_AWAY_S, Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.faults.context import FaultContext

_TOXIC = "reset_peer"


@dataclass(frozen=True, slots=True)
class Reset(LinkFault):
    """Reset every connection of the link (RST) at once, and each later one as soon as it carries bytes.

    Toxiproxy's `reset_peer` alone acts on an open connection only when bytes pass, and then closes
    it cleanly, because it prepares the socket for a reset when a connection is made. So the toxic
    is added before with a toxicity of 0, and the link is closed for a moment.
    """

    @property
    def description(self) -> str:
        """Return what the fault does, for reports."""
        return f"connections to {self.server} are reset"

    @contextmanager
    def prepared(self, context: FaultContext) -> Iterator[None]:
        """Turn each close into a reset; this closes no connection."""
        link = self.link(context)
        with link.with_toxic(_TOXIC, BOTH, {"timeout": 0}, toxicity=0):
            yield

    @contextmanager
    def injected(self, context: FaultContext) -> Iterator[None]:
        """Reset connections until the `with` ends."""
        link = self.link(context)
        with ExitStack() as undo:
            for stream in BOTH:
                undo.callback(link.set_toxicity, _TOXIC, stream, 0)
                link.set_toxicity(_TOXIC, stream, 1)
            with link.closed():
                pass
            yield


SCENARIOS = (
    Scenario(
        "tcp-reset",
        "The link is reset (RST) whenever bytes pass, while the task runs",
        "Every connection is reset for a while, as by a firewall that has forgotten the connection.",
        Reset(),
        Phase.RUNNING,
        lasts_s=LINK_AWAY_S,
        works_s=1,
        any_instant=True,
    ),
)
