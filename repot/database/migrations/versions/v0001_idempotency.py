"""The table of leases and idempotency records."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

from repot.database.schema import MYSQL_OPTIONS, LongText

revision = "0001"
down_revision = None

_TABLE, _INDEX = "repot_idempotency", "repot_idempotency_deleted_at"


def upgrade() -> None:
    """Create it; a server without transactions for such statements may have been interrupted between them."""
    op.create_table(
        _TABLE,
        sa.Column("prefix", sa.String(100), primary_key=True),
        sa.Column("key", sa.String(64), primary_key=True),
        *(sa.Column(name, sa.String(length), nullable=False) for name, length in _TEXTS),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("task", "task_id", "worker")),
        *(sa.Column(name, kind, nullable=False) for name, kind in _NUMBERS),
        sa.Column("deleted_at", sa.Double),
        sa.Column("ended_at", sa.Double),
        sa.Column("parked", sa.Boolean, nullable=False),
        sa.Column("result", LongText),
        sa.Column("error", LongText, nullable=False),
        sa.Column("held_for", sa.Text, nullable=False),
        if_not_exists=True,
        **MYSQL_OPTIONS,
    )
    if context.is_offline_mode() or not _has_index():
        op.create_index(_INDEX, _TABLE, ["deleted_at"])


_TEXTS = (("state", 10), ("owner", 64), ("payload", 64))
_NUMBERS = (
    ("fencing_token", sa.BigInteger),
    ("runs", sa.Integer),
    ("unknown_outcomes", sa.Integer),
    ("replay", sa.BigInteger),
    ("started_at", sa.Double),
    ("expires_at", sa.Double),
)


def _has_index() -> bool:
    return any(one["name"] == _INDEX for one in sa.inspect(op.get_bind()).get_indexes(_TABLE))
