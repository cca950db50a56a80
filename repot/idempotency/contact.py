"""Whether this process has had the lease store's answers for long enough to judge that the owner of a lease is dead."""

from __future__ import annotations

from contextlib import contextmanager
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from repot.errors import StoreUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Seconds beyond a lease: the owner's thread that repeats requests waits for up to a second between two attempts.
_BEYOND_S = 1.0
#: Failures of less than this share of a lease, or of less than a second, are those of single requests.
_SHARE, _MOST_S = 0.1, 1.0
#: The share of a lease for which a request waits for its answer while the store is there.
_PATIENCE = 1 / 6


class Contact:
    """What one process knows of the store's presence.

    While the store is away, leases expire whose owners live. For one lease after it is back, each of them can renew its
    lease or record its outcome; who takes over its key before would repeat an effect that has happened.
    """

    def __init__(self, lease_s: float = 0, since: float = -inf) -> None:
        """Take the store to be there since this instant of `time.monotonic`: for ever, or since the process began."""
        self._shortest_s = min(lease_s * _SHARE, _MOST_S)
        self._patience_s = lease_s * _PATIENCE if lease_s else inf
        #: When each request began that has no answer yet.
        self._asked: dict[object, float] = {}
        self._since = self._answered_at = since
        self._has_failed = False

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Note whether the store answers what is asked within a `with`."""
        begun, request = monotonic(), object()
        self._asked[request] = begun
        try:
            yield
        except StoreUnreachable:
            self._has_failed = True
            raise
        finally:
            del self._asked[request]
        at = monotonic()
        was_away = self._has_failed and at - self._answered_at > self._shortest_s
        # a client repeats a request before it fails
        if was_away or at - begun > self._patience_s:
            self._since = at
        self._has_failed, self._answered_at = False, at

    def grace_s(self, lease_s: float) -> float:
        """Return for how many seconds an expired lease of this length is left to its owner; 0 as a rule."""
        now = monotonic()
        if self._has_failed or any(now - begun > self._patience_s for begun in list(self._asked.values())):
            return lease_s + _BEYOND_S
        return max(self._since + lease_s + _BEYOND_S - now, 0)
