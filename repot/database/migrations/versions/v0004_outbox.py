"""The tables of messages that wait for their commit, and of the relay that publishes them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

from repot.database.schema import MYSQL_OPTIONS, LongText

revision = "0004"
down_revision = "0003"

_TABLE = "repot_outbox"
_INDEXES = {
    "repot_outbox_next_at": ["prefix", "state", "next_at", "id"],
    "repot_outbox_held_back": ["prefix", "order_key", "state", "id"],
}
#: Of the second one, where there are partial indexes.
_HAS_FAILED = sa.text("state <> 'waiting'")


def upgrade() -> None:
    """Create them; a server without transactions for such statements may have been interrupted between them."""
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        _TABLE,
        sa.Column("id", number, primary_key=True, autoincrement=True),
        sa.Column("prefix", sa.String(100), nullable=False),
        sa.Column("task_id", sa.String(255), nullable=False),
        sa.Column("root_id", sa.String(255), nullable=False),
        sa.Column("task", sa.Text, nullable=False),
        sa.Column("queue", sa.String(255), nullable=False),
        sa.Column("side", sa.String(10), nullable=False),
        sa.Column("order_key", sa.String(255)),
        sa.Column("envelope", LongText, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("due_at", sa.Double, nullable=False),
        sa.Column("next_at", sa.Double, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("error", LongText, nullable=False),
        if_not_exists=True,
        sqlite_autoincrement=True,
        **MYSQL_OPTIONS,
    )
    op.create_table(
        "repot_outbox_relay",
        sa.Column("prefix", sa.String(100), primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("fencing_token", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        if_not_exists=True,
        **MYSQL_OPTIONS,
    )
    made = set() if context.is_offline_mode() else _made()
    for name, columns in _INDEXES.items():
        if name not in made:
            failed = _HAS_FAILED if name == "repot_outbox_held_back" else None
            op.create_index(name, _TABLE, columns, postgresql_where=failed, sqlite_where=failed)


def _made() -> set[str | None]:
    return {one["name"] for one in sa.inspect(op.get_bind()).get_indexes(_TABLE)}
