"""What one process sent to each side of a rollout."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

from repot.routing.side import Side


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


class Counters:
    """Counts by side; threads may share them."""

    def __init__(self) -> None:
        """Begin at zero."""
        self._lock = Lock()
        self._sent = dict.fromkeys(Side, 0)
        self._fallbacks = dict.fromkeys(Side, 0)
        self._failures = dict.fromkeys(Side, 0)

    def sent(self, side: Side) -> None:
        """Count a message that a side accepted."""
        with self._lock:
            self._sent[side] += 1

    def fell_back(self, side: Side) -> None:
        """Count a message that was meant for a side and goes to the other one."""
        with self._lock:
            self._fallbacks[side] += 1

    def failed(self, side: Side) -> None:
        """Count an attempt to send to a side that failed."""
        with self._lock:
            self._failures[side] += 1

    def of(self, side: Side) -> SideCounts:
        """Return the counts of a side at one instant."""
        with self._lock:
            return SideCounts(self._sent[side], self._fallbacks[side], self._failures[side])
