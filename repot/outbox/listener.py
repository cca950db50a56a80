"""Wait for the next commit with messages: PostgreSQL announces it, other databases are asked again and again."""

from __future__ import annotations

import select
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sqlalchemy import exc

from repot.logs import get_logger
from repot.outbox.sending import CHANNEL

if TYPE_CHECKING:
    from threading import Event

    from sqlalchemy import Connection

    from repot.database.connection import Database

log = get_logger(__name__)

#: Seconds between two looks at a database that announces nothing, and at one that does: due tasks are not announced.
POLL_S = 0.5
_LISTEN_S = 1.0


class Listener:
    """Waits for one relay; belongs to its thread."""

    def __init__(self, database: Database) -> None:
        """Use a connection of its own; it connects on first use."""
        self._database = database
        self._connection: Connection | None = None

    def wait(self, stop: Event) -> None:
        """Return when messages were committed, or after a second at most; or soon after `stop` is set."""
        if self._database.engine.dialect.name != "postgresql":
            stop.wait(POLL_S)
            return
        try:
            self._listen()
        except (exc.SQLAlchemyError, OSError, self._driver_error()) as error:
            log.debug("commits are not announced now: %s", error)
            self.close()
            stop.wait(_LISTEN_S)

    def close(self) -> None:
        """Close the connection; raises nothing."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                # a pool would hand it out again
                connection.invalidate()
                connection.close()

    def _listen(self) -> None:
        if self._connection is None:
            self._connection = self._database.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            self._connection.exec_driver_sql(f"LISTEN {CHANNEL}")
            # what was committed before is not announced any more
            return
        driver: Any = self._connection.connection.driver_connection
        if callable(driver.notifies):
            for _ in driver.notifies(timeout=_LISTEN_S, stop_after=1):
                pass
            return
        select.select([driver], [], [], _LISTEN_S)
        driver.poll()
        driver.notifies.clear()

    def _driver_error(self) -> type[Exception]:
        dbapi: Any = self._database.engine.dialect.dbapi
        found: type[Exception] = dbapi.Error
        return found
