"""Records in the memory of this process; only `advance` moves its clock."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Generic

from repot.store.rules import R, T

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.store.rules import Rule


class MemoryRecords(Generic[R]):
    """Records under keys, each as long as `is_kept` says so."""

    def __init__(self, is_kept: Callable[[R, float], bool]) -> None:
        """Start empty, at time 1000."""
        self._records: dict[str, R] = {}
        self._is_kept = is_kept
        self._lock = Lock()
        self.now = 1000.0

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self.now += seconds

    def keys(self) -> list[str]:
        """Return the keys of all records."""
        with self._lock:
            return [key for key in self._records if self._found(key) is not None]

    def find(self, key: str) -> R | None:
        """Return the record of a key."""
        with self._lock:
            return self._found(key)

    def apply(self, key: str, rule: Rule[R, T]) -> T:
        """Apply a rule to the record of a key; return its answer."""
        with self._lock:
            changed, answer = rule(self._found(key), self.now)
            if changed is not None:
                self._records[key] = changed
            return answer

    def _found(self, key: str) -> R | None:
        found = self._records.get(key)
        return found if found is not None and self._is_kept(found, self.now) else None
