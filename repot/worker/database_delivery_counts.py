"""Store counts of deliveries in the user's own database, without holding the worker's event loop for long."""

from __future__ import annotations

from concurrent.futures import Future
from hashlib import sha256
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import case, insert, select, update

from repot.database.connection import Database
from repot.database.job_tables import deliveries as table
from repot.database.retention import CLEAN_EVERY_S, delete_expired
from repot.database.schema import now
from repot.errors import StoreUnreachable
from repot.forks import no_fork

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection

    from repot.config import WorkerSettings

T = TypeVar("T")


class DatabaseDeliveryCounts:
    """The `DeliveryCounts` on PostgreSQL, MySQL, MariaDB or SQLite; for one thread.

    An answer is waited for as long as for a connection (WORKER_SOCKET_CONNECT_TIMEOUT). The request itself runs in a
    thread, because drivers wait for a server that is frozen without an end.
    """

    def __init__(self, settings: WorkerSettings, retention_s: int) -> None:
        """Use the store of the settings; connects on first use."""
        self.database = Database(settings)
        self._prefix, self._retention_s = settings.lease_prefix, retention_s
        self._within_s = min(settings.socket_connect_timeout, settings.socket_timeout)
        self._cleans_at = monotonic() + CLEAN_EVERY_S
        self._thread: Thread | None = None

    def delivered(self, name: str) -> int:
        """Add one to the count of a message, and return it."""

        def act(connection: Connection) -> int:
            self._add(connection, name, 1)
            count = select(table.c.count).where(table.c.prefix == self._prefix, table.c.name == _digest(name))
            return int(connection.execute(count).scalar_one())

        return self._ask(act)

    def returned(self, names: Sequence[str]) -> None:
        """Take one off the count of each message."""

        def act(connection: Connection) -> None:
            # the order is the same in every worker, so that none waits for another in a circle
            for name in sorted(names, key=_digest):
                self._add(connection, name, -1)

        self._ask(act)

    def close(self) -> None:
        """Close the connections."""
        self.database.close()

    def _add(self, connection: Connection, name: str, number: int) -> None:
        key = {"prefix": self._prefix, "name": _digest(name)}
        kept = case((table.c.deleted_at > now(), table.c.count), else_=0)
        deleted_at = now() + self._retention_s
        step = update(table).where(*(table.c[column] == value for column, value in key.items()))
        # MySQL assigns one after the other: the count is read before the row is prolonged
        step = step.ordered_values((table.c.count, kept + number), (table.c.deleted_at, deleted_at))
        if not connection.execute(step).rowcount:
            connection.execute(insert(table).values(**key, count=number, deleted_at=deleted_at))

    def _ask(self, act: Callable[[Connection], T]) -> T:
        answer: Future[T] = Future()

        def ask() -> None:
            with no_fork():
                try:
                    answer.set_result(self.database.transact(act))
                except Exception as error:  # noqa: BLE001 - raised where the answer is waited for
                    answer.set_exception(error)
                else:
                    self._clean()

        ends_at = monotonic() + self._within_s
        if self._thread:
            self._thread.join(self._within_s)
        if not (self._thread and self._thread.is_alive()):
            self._thread = Thread(target=ask, name="repot-deliveries", daemon=True)
            self._thread.start()
        try:
            return answer.result(max(ends_at - monotonic(), 0))
        except TimeoutError as error:
            message = f"the lease store {self.database.url} did not answer within {self._within_s:g} s"
            raise StoreUnreachable(message, hint="Check the database of WORKER_LEASE_STORE.") from error

    def _clean(self) -> None:
        if monotonic() >= self._cleans_at:
            self._cleans_at = monotonic() + CLEAN_EVERY_S
            self.database.transact(lambda connection: delete_expired(connection, table, self._prefix))


def _digest(name: str) -> str:
    return sha256(name.encode(errors="surrogatepass")).hexdigest()
