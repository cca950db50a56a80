"""What one process sent to each side of a rollout."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repot.routing.choice import Side


@dataclass(frozen=True, slots=True)
class SideCounts:
    """Of one side, since the process began.

    Attributes:
        sent: messages that this side accepted.
        fallbacks: messages that were meant for this side and went to the other one.
        publish_failures: attempts to send to this side that failed, whatever became of the message.
    """

    sent: int = 0
    fallbacks: int = 0
    publish_failures: int = 0


@dataclass(slots=True)
class Counters:
    """Counts by side; threads may share them."""

    _lock: Lock = field(default_factory=Lock)
    _counts: dict[tuple[Side, str], int] = field(default_factory=dict)

    def sent(self, side: Side) -> None:
        """Count a message that a side accepted."""
        self._add(side, "sent")

    def fell_back(self, side: Side) -> None:
        """Count a message that was meant for a side and goes to the other one."""
        self._add(side, "fallbacks")

    def failed(self, side: Side) -> None:
        """Count an attempt to send to a side that failed."""
        self._add(side, "publish_failures")

    def of(self, side: Side) -> SideCounts:
        """Return the counts of a side at one instant."""
        with self._lock:
            return SideCounts(**{what: number for (where, what), number in self._counts.items() if where is side})

    def _add(self, side: Side, what: str) -> None:
        key = (side, what)
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + 1
