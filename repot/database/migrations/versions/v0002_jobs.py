"""The tables of jobs and of counts of deliveries."""

from __future__ import annotations

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create them."""
