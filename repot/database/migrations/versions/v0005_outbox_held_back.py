"""An index for messages that wait behind one of the same key."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

revision = "0005"
down_revision = "0004"

_TABLE, _INDEX = "repot_outbox", "repot_outbox_held_back"


def upgrade() -> None:
    """Create it, unless it is there: a server without transactions for such statements may have been interrupted."""
    if context.is_offline_mode() or not _has_index():
        failed = sa.text("state <> 'waiting'")
        op.create_index(
            _INDEX, _TABLE, ["prefix", "order_key", "state", "id"], postgresql_where=failed, sqlite_where=failed
        )


def _has_index() -> bool:
    return any(one["name"] == _INDEX for one in sa.inspect(op.get_bind()).get_indexes(_TABLE))
