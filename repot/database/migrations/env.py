"""What Alembic runs: on a connection, or without one for the SQL alone."""

from __future__ import annotations

from alembic import context

from repot.database import job_tables, outbox_tables, rollout_tables  # noqa: F401 - they add their tables to `metadata`
from repot.database.schema import VERSION_TABLE, metadata

attributes = context.config.attributes
context.configure(target_metadata=metadata, version_table=VERSION_TABLE, **attributes["options"])
with context.begin_transaction():
    context.run_migrations()
