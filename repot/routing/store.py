"""What a rollout needs of its lease store: named values under keys, and steps that read and write as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from repot.store.lease import LeaseFields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from repot.store.rules import R, Rule, T
    from repot.store.shapes import Shape

#: The lease of one process of a rollout: its controller, the beat that sends.
LEASE = LeaseFields("until")


def key_of(prefix: str, name: str) -> str:
    """Return the key of a rollout's record; its other keys start with it, and are on the same node of a cluster."""
    return f"{prefix}:rollout:{{{name}}}"


class RolloutStore(Protocol):
    """A lease store, for what rollouts keep there. Threads may share it; a forked child connects again.

    Every method is safe to repeat after a lost answer. It raises StoreUnreachable where the store is unavailable,
    StoreMisconfigured and StoreRefused where an operator has to act, and RecordUnreadable where the key holds a value
    of another type.
    """

    def text(self, key: str) -> str | None:
        """Return the only value of a key; None without one."""

    def put_text(self, key: str, text: str) -> None:
        """Put the only value of a key."""

    def fields(self, key: str) -> dict[str, str]:
        """Return the named values of a key."""

    def field(self, key: str, field: str) -> str | None:
        """Return a named value of a key; None without it."""

    def put(self, key: str, fields: Mapping[str, str]) -> None:
        """Put named values of a key, and leave the others."""

    def put_first(self, key: str, field: str, value: str) -> str:
        """Put a named value unless there is one; return the one that is stored."""

    def drop(self, key: str, field: str) -> None:
        """Delete a named value of a key."""

    def forget(self, *keys: str) -> None:
        """Delete all named values and all counts of some keys."""

    def counts(self, key: str) -> dict[str, int]:
        """Return the counts of a key, which steps add to."""

    def scores(self, key: str, since: float | None = None) -> dict[str, float]:
        """Return the members of a key with their scores; only those with this score, or a larger one."""

    def raise_scores(self, key: str, scores: Mapping[str, float]) -> None:
        """Put the scores of members, except of those that have a larger one."""

    def lines(self, key: str) -> list[str]:
        """Return the lines of a key, the first one first."""

    def ends(self, key: str) -> list[str]:
        """Return the first and the last line of a key; nothing without lines."""

    def now(self) -> float:
        """Return the store's time, in seconds since 1970."""

    def apply(self, key: str, shape: Shape[R], rule: Rule[R, T], history: str = "") -> T:
        """Apply a rule to the record that named values of a key are; `history` is the key of its lines."""

    def step(self, name: str, keys: Sequence[str], arguments: Sequence[str | float]) -> Any:  # noqa: ANN401 - see the scripts
        """Run one of the scripts of this package, each of which says what it takes and returns, as one step."""

    def close(self) -> None:
        """Close the connections."""
