"""Run statements of SQLAlchemy on a connection of a driver, within the transaction that its owner has begun there.

An engine made over such a connection would ask it for the server's version, and roll back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Executable
    from sqlalchemy.engine import Dialect

#: Forms of parameters that each of our drivers takes, by the dialect's name; all of them by name.
_STYLES = {"postgresql": "pyformat", "mysql": "pyformat", "mariadb": "pyformat", "sqlite": "named"}


class Answer:
    """The answer to one statement."""

    def __init__(self, rows: list[tuple[Any, ...]], rowcount: int) -> None:
        """Keep the rows, and the number of rows that were changed."""
        self._rows, self.rowcount = rows, rowcount

    def first(self) -> tuple[Any, ...] | None:
        """Return the first row; None without one."""
        return self._rows[0] if self._rows else None

    def scalar_one(self) -> Any:  # noqa: ANN401 - of any column
        """Return the one value."""
        ((value,),) = self._rows
        return value


class DriverConnection:
    """The part of SQLAlchemy's Connection that the lease store uses."""

    def __init__(self, connection: Any, dialect: Dialect) -> None:  # noqa: ANN401 - of a driver
        """Use a connection whose owner begins and ends its transactions."""
        self._connection = connection
        make: Any = type(dialect)
        self.dialect = make(paramstyle=_STYLES[dialect.name])

    def execute(self, statement: Executable) -> Answer:
        """Run one statement."""
        compiled: Any = statement.compile(dialect=self.dialect)  # type: ignore[attr-defined]
        cursor = self._connection.cursor()
        try:
            cursor.execute(compiled.string, compiled.construct_params())
            found = cursor.fetchall() if cursor.description else []
            # some applications let their connections return mappings
            rows = [tuple(row.values()) if hasattr(row, "values") else tuple(row) for row in found]
            return Answer(rows, cursor.rowcount)
        finally:
            cursor.close()
