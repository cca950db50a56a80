"""What a rollout keeps, in the user's own database: one transaction for each method, by the database's clock."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from repot.database.connection import Database
from repot.routing.database_rows import read, write
from repot.routing.steps import STEPS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from repot.config import WorkerSettings
    from repot.routing.database_rows import Rows
    from repot.store.rules import R, Rule, T
    from repot.store.shapes import Shape

#: Seconds between two deletions by one process.
_CLEAN_EVERY_S = 60.0


class DatabaseRolloutStore:
    """The `RolloutStore` on PostgreSQL, MySQL, MariaDB or SQLite."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Use the store of the settings; imports the driver, and connects on first use.

        Raises:
            ConfigInvalid: the driver is not installed, or the address is not one of SQLAlchemy's.
        """
        self.database = Database(settings)
        # now, and not in a thread beside which the process may fork
        _ = self.database.engine
        self._cleans_at = monotonic() + _CLEAN_EVERY_S

    def close(self) -> None:
        """Close the connections."""
        self.database.close()

    def text(self, key: str) -> str | None:
        """Return the only value of a key."""
        return self._read(lambda rows: rows.field(key, ""))

    def put_text(self, key: str, text: str) -> None:
        """Put the only value of a key."""
        self._write(lambda rows: rows.put(key, {"": text}))

    def fields(self, key: str) -> dict[str, str]:
        """Return the named values of a key."""
        return self._read(lambda rows: rows.fields(key))

    def field(self, key: str, field: str) -> str | None:
        """Return a named value of a key."""
        return self._read(lambda rows: rows.field(key, field))

    def put(self, key: str, fields: Mapping[str, str]) -> None:
        """Put named values of a key."""
        self._write(lambda rows: rows.put(key, fields))

    def put_first(self, key: str, field: str, value: str) -> str:
        """Put a named value unless there is one."""
        return self._write(lambda rows: rows.put_first(key, field, value))

    def drop(self, key: str, field: str) -> None:
        """Delete a named value."""
        self._write(lambda rows: rows.drop(key, field))

    def forget(self, *keys: str) -> None:
        """Delete all named values and all counts of some keys."""
        self._write(lambda rows: rows.forget(keys))

    def counts(self, key: str) -> dict[str, int]:
        """Return the counts of a key."""
        return self._read(lambda rows: rows.counts(key))

    def scores(self, key: str, since: float | None = None) -> dict[str, float]:
        """Return the members of a key with their scores."""
        return self._read(lambda rows: rows.scores(key, since))

    def raise_scores(self, key: str, scores: Mapping[str, float]) -> None:
        """Put the scores of members, except of those that have a larger one."""
        self._write(lambda rows: rows.raise_scores(key, scores))

    def lines(self, key: str) -> list[str]:
        """Return the lines of a key."""
        return self._read(lambda rows: rows.lines(key))

    def ends(self, key: str) -> list[str]:
        """Return the first and the last line of a key."""
        return self._read(lambda rows: rows.ends(key))

    def now(self) -> float:
        """Return the database's time."""
        return self._read(lambda rows: rows.now())

    def apply(self, key: str, shape: Shape[R], rule: Rule[R, T], history: str = "") -> T:
        """Apply a rule to the record that named values of a key are."""
        return self._write(lambda rows: rows.apply(key, shape, rule, history))

    def step(self, name: str, keys: Sequence[str], arguments: Sequence[str | float]) -> Any:  # noqa: ANN401 - of a step
        """Run the function of `repot.routing.steps` that does what the script of this name does."""
        if monotonic() >= self._cleans_at:
            self._cleans_at = monotonic() + _CLEAN_EVERY_S
            self.clean()
        return self._write(lambda rows: STEPS[name](rows, keys, arguments))

    def clean(self) -> int:
        """Delete expired rows, at most 500 of each table; return how many."""
        return self._write(lambda rows: rows.clean())

    def _read(self, act: Callable[[Rows], T]) -> T:
        return read(self.database, act)

    def _write(self, act: Callable[[Rows], T]) -> T:
        return write(self.database, act)
