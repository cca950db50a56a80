"""Send straight past a broker that does not answer, for a while."""

from __future__ import annotations

import random
from threading import Lock
from time import monotonic

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
        self._random = random.Random()  # noqa: S311 - no secret

    @property
    def is_open(self) -> bool:
        """Return whether the last try failed."""
        return self._pause_s > 0

    def allows(self) -> bool:
        """Return whether this caller may try; one that may must say how it went."""
        if not self._pause_s:
            return True
        with self._lock:
            now = monotonic()
            if now < self._open_until:
                return False
            # this caller's try: the others wait for its end
            self._open_until = now + self._probe_s
            return True

    def succeeded(self) -> bool:
        """Close it; return whether it was open."""
        if not self._pause_s:
            return False
        with self._lock:
            was_open, self._pause_s = self._pause_s > 0, 0.0
            return was_open

    def failed(self) -> bool:
        """Open it, for longer than the last time; return whether it was closed."""
        with self._lock:
            was_closed = not self._pause_s
            now = monotonic()
            if was_closed or now >= self._open_until - self._probe_s:
                self._pause_s = min(max(2 * self._pause_s, FIRST_S), LONGEST_S)
            self._open_until = now + self._pause_s * (1 + self._random.uniform(-_JITTER, _JITTER))
            return was_closed
