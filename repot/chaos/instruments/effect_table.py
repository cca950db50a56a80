"""Effects of the task under test as rows of a database: what a transaction leaves of them when its process dies."""

from __future__ import annotations

import json
import os
from time import monotonic
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Column, Integer, MetaData, Table, Text, insert, select

from repot.chaos.instruments.journal import EFFECT, JournalEvent
from repot.database.connection import Database
from repot.database.migrate import Migrations

if TYPE_CHECKING:
    from repot.config import WorkerSettings

_TABLE = Table(
    "repot_chaos_effects",
    MetaData(),
    Column("number", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=True),
    Column("line", Text, nullable=False),
)


def write_effect(session: Any, worker: str, task: str) -> None:  # noqa: ANN401 - SQLAlchemy's
    """Write an effect in a transaction that is open."""
    line = json.dumps([monotonic(), EFFECT, worker, os.getpid(), task])
    session.execute(insert(_TABLE).values(line=line))


class EffectTable:
    """The effects that were committed in the lease store of an experiment."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Make the tables of effects and leases."""
        self._database = Database(settings)
        Migrations(self._database).apply()
        _TABLE.metadata.create_all(self._database.engine)

    def read(self) -> list[JournalEvent]:
        """Return all of them, as events of the journal."""
        query = select(_TABLE.c.line).order_by(_TABLE.c.number)
        lines = self._database.read(lambda connection: list(connection.scalars(query)))
        return [JournalEvent(*json.loads(line)) for line in lines]

    def close(self) -> None:
        """Close the connections."""
        self._database.close()
