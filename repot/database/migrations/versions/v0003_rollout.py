"""The tables of rollouts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

from repot.database.schema import MYSQL_OPTIONS, LongText

revision = "0003"
down_revision = "0002"

_INDEXES = (
    ("repot_rollout_fields_expires_at", "repot_rollout_fields", ["expires_at"]),
    ("repot_rollout_scores_score", "repot_rollout_scores", ["key", "score"]),
    ("repot_rollout_scores_expires_at", "repot_rollout_scores", ["expires_at"]),
)


def upgrade() -> None:
    """Create them; a server without transactions for such statements may have been interrupted between them."""
    _create(
        "repot_rollout_fields",
        _name("field"),
        sa.Column("value", LongText, nullable=False),
        sa.Column("expires_at", sa.Double),
    )
    _create(
        "repot_rollout_counts",
        _name("field"),
        sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("count", sa.BigInteger, nullable=False),
    )
    _create(
        "repot_rollout_scores",
        _name("member"),
        sa.Column("score", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double),
    )
    _create(
        "repot_rollout_lines",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("line", LongText, nullable=False),
    )
    for name, table, columns in _INDEXES:
        if context.is_offline_mode() or not _has_index(name, table):
            op.create_index(name, table, columns)


def _create(name: str, *columns: sa.Column) -> None:  # type: ignore[type-arg]
    key = sa.Column("key", sa.String(300), primary_key=True)
    op.create_table(name, key, *columns, if_not_exists=True, **MYSQL_OPTIONS)


def _name(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.String(450), primary_key=True)


def _has_index(name: str, table: str) -> bool:
    return any(one["name"] == name for one in sa.inspect(op.get_bind()).get_indexes(table))
