"""The tables of jobs and of counts of deliveries."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context, op

from repot.database.schema import MYSQL_OPTIONS, LongText

revision = "0002"
down_revision = "0001"

#: Each has an index on `deleted_at`.
_INDEXED = ("repot_jobs", "repot_job_scopes", "repot_job_keys", "repot_job_audits", "repot_deliveries")


def upgrade() -> None:
    """Create them; a server without transactions for such statements may have been interrupted between them."""
    _create(
        "repot_jobs",
        _key("id", 255),
        *_texts(scope=64),
        _column("name", LongText),
        _column("task", sa.Text),
        *_texts(status=20, payload=64, key=64, submitter=64, owner=64),
        _column("generation", sa.BigInteger),
        _column("attempts", sa.Integer),
        _column("replacements", sa.Integer),
        *(_column(name, sa.Double) for name in ("created_at", "updated_at", "expires_at")),
        sa.Column("ended_at", sa.Double),
        *(sa.Column(name, sa.Text) for name in ("done", "total", "stage")),
        _column("error_type", sa.Text),
        _column("error", LongText),
        *_texts(successor=255),
        _column("deleted_at", sa.Double),
    )
    _create(
        "repot_job_scopes",
        _key("scope"),
        *_texts(job=255),
        _column("generation", sa.BigInteger),
        _column("deleted_at", sa.Double),
    )
    _create("repot_job_keys", _key("key"), *_texts(job=255), _column("deleted_at", sa.Double))
    _create(
        "repot_job_audits",
        _column("entries", sa.BigInteger),
        *_sums(),
        _column("deleted_at", sa.Double),
    )
    _create(
        "repot_job_refusals",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        _column("refused_at", sa.Double),
        *_texts(kind=20),
        _column("scope", LongText),
        *_texts(job=255, active=255, status=20),
    )
    _create("repot_job_sums", _key("scope"), _column("name", LongText), *_sums(), _column("entry", sa.BigInteger))
    op.create_table(
        "repot_deliveries",
        sa.Column("prefix", sa.String(100), primary_key=True),
        _key("name"),
        _column("count", sa.Integer),
        _column("deleted_at", sa.Double),
        if_not_exists=True,
        **MYSQL_OPTIONS,
    )
    for table in _INDEXED:
        name = f"{table}_deleted_at"
        if context.is_offline_mode() or not _has_index(table, name):
            op.create_index(name, table, ["deleted_at"])


def _create(name: str, *columns: sa.Column[Any]) -> None:
    """Create a table of which each tenant has rows."""
    prefix = sa.Column("prefix", sa.String(100), primary_key=True)
    op.create_table(name, prefix, _key("tenant"), *columns, if_not_exists=True, **MYSQL_OPTIONS)


def _key(name: str, length: int = 64) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), primary_key=True)


def _column(name: str, kind: Any) -> sa.Column[Any]:  # noqa: ANN401 - any type of SQLAlchemy's
    return sa.Column(name, kind, nullable=False)


def _texts(**lengths: int) -> list[sa.Column[Any]]:
    return [_column(name, sa.String(length)) for name, length in lengths.items()]


def _sums() -> list[sa.Column[Any]]:
    return [_column("refused", sa.BigInteger), _column("cost", sa.Double)]


def _has_index(table: str, name: str) -> bool:
    return any(one["name"] == name for one in sa.inspect(op.get_bind()).get_indexes(table))
