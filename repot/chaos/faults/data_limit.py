"""Close connections after a number of bytes."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repot.chaos.faults.link_fault import TO, Range, StreamFault, Streams, between
from repot.chaos.instruments.failpoints import Phase
from repot.chaos.scenarios.scenario import Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.faults.context import FaultContext


@dataclass(frozen=True, slots=True)
class DataLimit(StreamFault):
    """Close a connection after a number of bytes, also in the middle of a request.

    Bytes of open connections are counted from the start of the fault, those of later connections from their first byte.
    """

    streams: Streams = TO
    limit_bytes: Range = field(default=(20, 200), kw_only=True)

    @property
    def description(self) -> str:
        """Return what the fault does, for reports."""
        return f"connections are closed after {between(self.limit_bytes, f'bytes {self.way}')}"

    @contextmanager
    def injected(self, context: FaultContext) -> Iterator[None]:
        """Limit connections until the `with` ends."""
        amounts = {"bytes": context.rng.randint(*self.limit_bytes)}
        with self.link(context).with_toxic("limit_data", self.streams, amounts):
            yield


SCENARIOS = (
    Scenario(
        "data-limit",
        "The link closes after a number of bytes, again and again",
        "A worker reconnects in a loop, and finishes its work when the link holds. On Redis a failed ACK is only "
        "logged, and its message counts against the prefetch for ever: without repot a worker with a prefetch of one "
        "takes no other message.",
        DataLimit(),
        Phase.RUNNING,
        lasts_s=6,
        works_s=1,
    ),
)
