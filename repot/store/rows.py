"""Records in rows of the user's own database: a rule is applied to a locked row, within one transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from sqlalchemy import insert, select, update

from repot.database.schema import now
from repot.database.text import storable
from repot.store.rules import R, T

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection, Table

    from repot.database.driver_connection import DriverConnection
    from repot.store.rules import Rule


@dataclass(frozen=True, slots=True)
class RowRecords(Generic[R]):
    """Records of one kind, each in a row of a table.

    Attributes:
        columns: those that `read` makes a record of; `values` returns what is written for one, by their names.
        is_kept: whether a record's retention is not over; without it every one is kept.
    """

    table: Table
    columns: Sequence[ColumnElement[Any]]
    read: Callable[[Sequence[Any]], R]
    values: Callable[[R], Mapping[str, Any]]
    is_kept: Callable[[R, float], bool] = lambda _record, _now: True

    def find(self, connection: Connection, **key: str) -> tuple[R | None, float]:
        """Return the record of a key, which are columns with their values, and the time."""
        row, at = self._row(connection, key, lock=False)
        return self._record(row, at), at

    def apply(self, connection: Connection | DriverConnection, rule: Rule[R, T], **key: str) -> T:
        """Apply a rule to the record of a key, which no other transaction changes before this one ends."""
        row, at = self._row(connection, key, lock=True)
        changed, answer = rule(self._record(row, at), at)
        if changed is None:
            return answer
        values = {name: storable(value) for name, value in self.values(changed).items()}
        if row is None:
            connection.execute(insert(self.table).values(**key, **values))
        else:
            connection.execute(update(self.table).where(*self._is(key)).values(**values))
        return answer

    def _row(
        self, connection: Connection | DriverConnection, key: Mapping[str, str], *, lock: bool
    ) -> tuple[Sequence[Any] | None, float]:
        # asked before the row is waited for: a lease is taken to last longer by that, and one given ends sooner
        at = float(connection.execute(select(now())).scalar_one())
        query = select(*self.columns).where(*self._is(key))
        return connection.execute(query.with_for_update() if lock else query).first(), at

    def _record(self, row: Sequence[Any] | None, at: float) -> R | None:
        found = None if row is None else self.read(row)
        return found if found is not None and self.is_kept(found, at) else None

    def _is(self, key: Mapping[str, str]) -> list[ColumnElement[bool]]:
        return [self.table.c[name] == value for name, value in key.items()]
