"""The tables of the outbox. Instants are seconds since 1970, by the database's clock."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, Integer, String, Table, Text, text

from repot.database.schema import MYSQL_OPTIONS, LongText, metadata

#: SQLite numbers rows by themselves only in a column of this type.
Number = BigInteger().with_variant(Integer(), "sqlite")

#: MySQL and MariaDB have no partial indexes.
_HAS_FAILED = text("state <> 'waiting'")

#: One row for each message; `repot.outbox.store.Row` describes the columns.
outbox = Table(
    "repot_outbox",
    metadata,
    Column("id", Number, primary_key=True, autoincrement=True),
    Column("prefix", String(100), nullable=False),
    Column("task_id", String(255), nullable=False),
    Column("root_id", String(255), nullable=False),
    Column("task", Text, nullable=False),
    Column("queue", String(255), nullable=False),
    Column("side", String(10), nullable=False),
    Column("order_key", String(255)),
    Column("envelope", LongText, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("due_at", Double, nullable=False),
    Column("next_at", Double, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("state", String(10), nullable=False),
    Column("error", LongText, nullable=False),
    Index("repot_outbox_next_at", "prefix", "state", "next_at", "id"),
    Index(
        "repot_outbox_held_back",
        "prefix",
        "order_key",
        "state",
        "id",
        postgresql_where=_HAS_FAILED,
        sqlite_where=_HAS_FAILED,
    ),
    # else SQLite gives the number of a deleted row to the next one
    sqlite_autoincrement=True,
    **MYSQL_OPTIONS,
)

#: The relay that publishes, one for each prefix.
relay = Table(
    "repot_outbox_relay",
    metadata,
    Column("prefix", String(100), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("fencing_token", BigInteger, nullable=False),
    Column("expires_at", Double, nullable=False),
    **MYSQL_OPTIONS,
)
