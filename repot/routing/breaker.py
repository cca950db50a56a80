"""Send straight past a broker that does not answer, for a while."""

from __future__ import annotations

from threading import Lock
from time import monotonic

from repot.waiting import spread

#: Seconds of the first pause and of the longest one; each is twice the one before, give or take a quarter.
FIRST_S, LONGEST_S = 1.0, 10.0
_JITTER = 0.25


class Breaker:
    """Open after a failure; after a pause one caller tries again, while the others still pass by. Threads share it."""

    def __init__(self, probe_s: float) -> None:
        """Take how long one try may last, in seconds."""
        self._probe_s = probe_s
        self._lock = Lock()
        self._pause_s = 0.0
        self._open_until = 0.0
        self._is_tried = False

    def allows(self) -> bool:
        """Return whether this caller may try; one that may must say how it went."""
        if not self._pause_s:
            return True
        with self._lock:
            now = monotonic()
            if now < self._open_until:
                return False
            # this caller's try: the others wait for its end
            self._open_until, self._is_tried = now + self._probe_s, True
            return True

    def succeeded(self) -> bool:
        """Close it; return whether it was open."""
        if not self._pause_s:
            return False
        with self._lock:
            was_open, self._pause_s, self._is_tried = self._pause_s > 0, 0.0, False
            return was_open

    def failed(self) -> bool:
        """Open it, for longer than the last time; return whether it was closed."""
        with self._lock:
            was_closed = not self._pause_s
            if was_closed or self._is_tried:
                self._pause_s = min(max(2 * self._pause_s, FIRST_S), LONGEST_S)
                self._open_until = monotonic() + self._pause_s * (1 + spread(-_JITTER, _JITTER))
                self._is_tried = False
            # else a caller that had begun before the first failure
            return was_closed
