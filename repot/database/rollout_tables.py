"""The tables of rollouts and of moves' journals, as the last migration leaves them.

`repot.routing.store` and `repot.brokers.journal_hashes` say what is under which key.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, Integer, String, Table

from repot.database.schema import MYSQL_OPTIONS, LongText, metadata

#: Characters; a primary key of MySQL's has 3,072 bytes.
KEY_LENGTH, NAME_LENGTH = 300, 450


def _key() -> Column[str]:
    return Column("key", String(KEY_LENGTH), primary_key=True)


def _name(name: str) -> Column[str]:
    return Column(name, String(NAME_LENGTH), primary_key=True)


#: Named values. The one without a name is the only value of its key, or what a step locks.
fields = Table(
    "repot_rollout_fields",
    metadata,
    _key(),
    _name("field"),
    Column("value", LongText, nullable=False),
    Column("expires_at", Double),
    Index("repot_rollout_fields_expires_at", "expires_at"),
    **MYSQL_OPTIONS,
)

#: The parts of counts: processes that count at once write to different parts.
counts = Table(
    "repot_rollout_counts",
    metadata,
    _key(),
    _name("field"),
    Column("part", Integer, primary_key=True, autoincrement=False),
    Column("count", BigInteger, nullable=False),
    **MYSQL_OPTIONS,
)

scores = Table(
    "repot_rollout_scores",
    metadata,
    _key(),
    _name("member"),
    Column("score", Double, nullable=False),
    Column("expires_at", Double),
    Index("repot_rollout_scores_score", "key", "score"),
    Index("repot_rollout_scores_expires_at", "expires_at"),
    **MYSQL_OPTIONS,
)

lines = Table(
    "repot_rollout_lines",
    metadata,
    _key(),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("line", LongText, nullable=False),
    **MYSQL_OPTIONS,
)
