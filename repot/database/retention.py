"""Delete rows whose retention has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import delete, func, select

from repot.database.schema import now

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

#: Rows that one transaction deletes: about so many.
_PAGE = 500

#: Seconds between two deletions by one process.
CLEAN_EVERY_S = 60.0


def delete_expired(connection: Connection, table: Table, prefix: str) -> int:
    """Delete rows of a prefix whose `deleted_at` has passed, about 500 at most; return how many."""
    ends = table.c.deleted_at
    over = (table.c.prefix == prefix, ends <= now())
    oldest = select(ends).where(*over).order_by(ends).limit(_PAGE).subquery()
    last = connection.scalar(select(func.max(oldest.c.deleted_at)))
    # a row that another transaction renews meanwhile stays: the condition is looked at again behind its lock
    return 0 if last is None else connection.execute(delete(table).where(*over, ends <= last)).rowcount
