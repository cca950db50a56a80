"""The fencing token in the store of the effect, with the SQL of docs/idempotency.md."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "idempotency.md"


def test_a_late_writer_is_refused() -> None:
    """Two runs of one order: the first was paused past its lease, and writes after its successor."""
    table, write = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute(table)

        def written(amount: int, fencing_token: int) -> int:
            return database.execute(write, {"order_id": "o", "amount": amount, "fencing_token": fencing_token}).rowcount

        assert [written(20, 2), written(10, 1), written(99, 2)] == [1, 0, 0]
        assert database.execute("SELECT amount FROM payment").fetchall() == [(20,)]
        # the token of a run without a lease is below all others
        assert [written(5, 0), written(30, 3)] == [0, 1]
