"""Bring the tables of the lease store to this version of repot: forward only, by Alembic."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from io import StringIO
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.script.revision import RevisionError
from alembic.util import CommandError
from sqlalchemy import exc, func, select

from repot.database.schema import VERSION_TABLE
from repot.errors import StoreMisconfigured, StoreRefused, StoreUnreachable
from repot.waiting import spread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from repot.database.connection import Database


#: Seconds after which a migration that failed beside another one is tried again.
_PAUSES_S = (0.5, 1.0, 2.0)
#: Seconds for which one waits for the end of another.
_LONGEST_S = 60

#: Alembic keeps the running migration in globals of a module: one at a time in a process.
_IN_THIS_PROCESS = Lock()


@dataclass(frozen=True, slots=True)
class Migration:
    """A version of the tables."""

    version: str
    title: str


class Migrations:
    """The versions of one database's tables."""

    def __init__(self, database: Database) -> None:
        """Use a database; connects on first use."""
        self._database = database

    def current(self) -> str:
        """Return the version of the tables; empty without any.

        Raises:
            StoreUnreachable, StoreMisconfigured: as every request to the database.
        """
        return self._database.read(_version)

    def pending(self) -> list[Migration]:
        """Return the versions that the tables lack, in order.

        Raises:
            StoreMisconfigured: a newer repot has made the tables.
            StoreUnreachable: the database is unavailable.
        """
        current = self.current()
        try:
            found = list(ScriptDirectory.from_config(self._config()).iterate_revisions("heads", current or "base"))
        except (CommandError, RevisionError) as error:
            message = f"the tables are at version {current}, which this repot does not know: a newer one made them"
            raise StoreMisconfigured(message, hint="Upgrade repot; there is no way back.") from error
        return [Migration(one.revision, one.doc) for one in reversed(found) if one.revision != current]

    def statements(self) -> list[str]:
        """Return the SQL that `apply` would run, for this database's dialect.

        Raises:
            StoreUnreachable, StoreMisconfigured: as `pending`.
        """
        if not self.pending():
            return []
        config = self._config(dialect_name=self._database.engine.dialect.name)
        config.output_buffer = StringIO()
        current = self.current()
        with _IN_THIS_PROCESS:
            command.upgrade(config, f"{current or 'base'}:heads", sql=True)
        parts = (re.sub(r"(?m)^--.*\n?", "", part).strip() for part in config.output_buffer.getvalue().split(";\n"))
        return [part for part in parts if part and part not in ("BEGIN", "COMMIT")]

    def apply(self) -> list[Migration]:
        """Bring the tables to the newest version; return what was done. Safe beside another one, and after a kill.

        Raises:
            StoreUnreachable, StoreMisconfigured, StoreRefused: as every request to the database.
        """
        for pause_s in _PAUSES_S:
            pending = self.pending()
            try:
                if pending:
                    self._upgrade()
            except StoreRefused:
                raise
            except (StoreMisconfigured, StoreUnreachable):
                # perhaps another one makes the same tables
                Event().wait(spread(0, pause_s))
            else:
                return pending
        pending = self.pending()
        if pending:
            self._upgrade()
        return pending

    def _upgrade(self) -> None:
        try:
            with (
                self._database.errors_named(),
                self._database.unlimited.engine.connect() as connection,
                _alone(connection),
                _IN_THIS_PROCESS,
            ):
                command.upgrade(self._config(connection=connection), "heads")
                connection.commit()
        except CommandError as error:
            # another one has brought the tables to this version
            message = f"another one migrates the tables of the lease store {self._database.url}: {error}"
            raise StoreUnreachable(message, hint="Run `repot store migrate --execute` again.") from error

    def _config(self, **options: Any) -> Config:  # noqa: ANN401 - of Alembic
        config = Config(attributes={"options": options})
        config.set_main_option("script_location", str(files("repot.database") / "migrations"))
        return config


@contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """Keep other migrations out, where each statement of one is committed by itself: in MySQL and MariaDB."""
    if connection.dialect.name not in ("mysql", "mariadb"):
        yield
        return
    connection.execute(select(func.get_lock(VERSION_TABLE, _LONGEST_S)))
    try:
        yield
    finally:
        connection.execute(select(func.release_lock(VERSION_TABLE)))


def _version(connection: Connection) -> str:
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    try:
        return context.get_current_revision() or ""
    except exc.ProgrammingError as error:
        raise StoreMisconfigured(str(error.orig), hint="") from error
