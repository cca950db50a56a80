"""The tables, as the last migration leaves them. Instants are seconds since 1970, by the database's clock."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Double, Index, Integer, MetaData, String, Table, Text
from sqlalchemy.dialects.mysql import LONGTEXT
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

metadata = MetaData()

#: The table with the version of the others.
VERSION_TABLE = "repot_schema"

#: The default of MySQL compares text without regard to case.
MYSQL_OPTIONS: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in {"engine": "InnoDB", "charset": "utf8mb4", "collate": "utf8mb4_bin"}.items()
}

#: MySQL's TEXT ends at 64 KiB.
LongText = Text().with_variant(LONGTEXT(), "mysql", "mariadb")

#: One row for each key; `repot.idempotency.transitions.StoredRecord` describes the columns.
idempotency = Table(
    "repot_idempotency",
    metadata,
    Column("prefix", String(100), primary_key=True),
    Column("key", String(64), primary_key=True),
    Column("state", String(10), nullable=False),
    Column("owner", String(64), nullable=False),
    Column("payload", String(64), nullable=False),
    Column("task", Text, nullable=False),
    Column("task_id", Text, nullable=False),
    Column("worker", Text, nullable=False),
    Column("fencing_token", BigInteger, nullable=False),
    Column("runs", Integer, nullable=False),
    Column("unknown_outcomes", Integer, nullable=False),
    Column("replay", BigInteger, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("deleted_at", Double),
    Column("ended_at", Double),
    Column("parked", Boolean, nullable=False),
    Column("result", LongText),
    Column("error", LongText, nullable=False),
    Column("held_for", Text, nullable=False),
    Index("repot_idempotency_deleted_at", "deleted_at"),
    **MYSQL_OPTIONS,
)


class now(FunctionElement[float]):  # noqa: N801 - a function of SQL
    """The database's time, in seconds since 1970; of the statement, not of the transaction."""

    type = Double()
    inherit_cache = True


@compiles(now, "postgresql")
def _now_of_postgresql(_element: Any, _compiler: Any, **_: Any) -> str:  # noqa: ANN401 - SQLAlchemy's
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"


@compiles(now, "mysql", "mariadb")
def _now_of_mysql(_element: Any, _compiler: Any, **_: Any) -> str:  # noqa: ANN401
    # UTC: an hour of local time comes twice in autumn
    return "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1e6)"


@compiles(now, "sqlite")
def _now_of_sqlite(_element: Any, _compiler: Any, **_: Any) -> str:  # noqa: ANN401
    return "((julianday('now') - 2440587.5) * 86400.0)"


def storable(value: Any) -> Any:  # noqa: ANN401 - of any column
    """Return text that every database stores: PostgreSQL knows no NUL, and UTF-8 no half of a pair."""
    if not isinstance(value, str):
        return value
    return str(value).replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
