"""The outbox as its relay and people see it: messages that wait, and the lease of the one relay that publishes.

Instants are seconds since 1970, by the database's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, case, delete, func, insert, or_, select, update
from sqlalchemy.orm import aliased

from repot.brokers.moving import WINDOW_BYTES
from repot.database.connection import Database
from repot.database.outbox_tables import outbox as table
from repot.database.outbox_tables import relay
from repot.database.schema import now
from repot.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection

    from repot.config import WorkerSettings

#: Messages that are published together at most: what a relay's death may send twice.
WINDOW = 500
#: Rows that one transaction reads for people, or changes.
_PAGE = 500


@dataclass(frozen=True, slots=True)
class Row:
    """A message that was committed and is not published.

    Attributes:
        id: its place in the order; grows.
        side: where its root runs in a rollout; empty for a free choice.
        order_key: messages with the same one are published in order; None without one.
        due_at: when it may be published: at once, or at its ETA.
        retry_at: no attempt before; None before the first failure.
        attempts: how often it could not be published.
        parked: it waits for an operator.
        error: of the last attempt.
    """

    id: int
    task_id: str
    root_id: str
    task: str
    queue: str
    side: str
    order_key: str | None
    created_at: float
    due_at: float
    retry_at: float | None
    attempts: int
    parked: bool
    error: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a message could not be published; `retry_s` is the time until the next attempt, None to park it."""

    error: str
    retry_s: float | None


@dataclass(frozen=True, slots=True)
class Backlog:
    """Numbers of messages.

    Attributes:
        waiting: they are due.
        delayed: they have an ETA.
        parked: they wait for an operator.
        oldest_s: how long the oldest one that is due has waited, in seconds; None if none is.
    """

    waiting: int
    delayed: int
    parked: int
    oldest_s: float | None


@dataclass(frozen=True, slots=True)
class Held:
    """The relay's lease: its fencing token, or else the owner that has it."""

    token: int | None
    owner: str


_COLUMNS = [table.c[one.name] for one in fields(Row)]


class OutboxStore:
    """The outbox of one prefix; threads may share it.

    Every method raises StoreUnreachable, StoreRefused or StoreMisconfigured as every request to the database.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        """Use the database of the settings; connects on first use."""
        self.database = Database(settings)
        self._prefix = settings.lease_prefix
        self._lease_s = settings.lease

    def close(self) -> None:
        """Close the connections."""
        self.database.close()

    def hold(self, owner: str, ended: str = "") -> Held:
        """Acquire or renew the relay's lease, also from an owner that is known to have `ended`."""

        def act(connection: Connection) -> Held:
            found = connection.execute(select(relay).where(relay.c.prefix == self._prefix).with_for_update()).first()
            at = float(connection.execute(select(now())).scalar_one())
            if found and found.owner not in (owner, ended, "") and found.expires_at > at:
                return Held(None, found.owner)
            token = found.fencing_token if found and found.owner == owner else (found.fencing_token if found else 0) + 1
            values = {"owner": owner, "fencing_token": token, "expires_at": at + self._lease_s}
            if found:
                connection.execute(update(relay).where(relay.c.prefix == self._prefix).values(values))
            else:
                connection.execute(insert(relay).values(prefix=self._prefix, **values))
            return Held(token, owner)

        return self.database.transact(act)

    def release(self, token: int) -> None:
        """End the lease, if its token is still this one."""
        ended = update(relay).where(*self._of_token(token)).values(owner="", expires_at=0)
        self.database.transact(lambda connection: connection.execute(ended))

    def renew(self, token: int) -> bool:
        """Extend the lease; return False if another relay has taken it."""
        return self.database.transact(lambda connection: self._renewed(connection, token))

    def window(self) -> list[tuple[Row, str]]:
        """Return messages to publish now with their envelopes, in order; at most 500 of about 32 MiB."""

        def act(connection: Connection) -> list[tuple[Row, str]]:
            sizes = connection.execute(
                select(table.c.id, func.length(table.c.envelope))
                .where(*self._publishable())
                .order_by(table.c.due_at, table.c.id)
                .limit(WINDOW)
            ).all()
            ids = list(_fitting((one[0], one[1]) for one in sizes))
            if not ids:
                return []
            rows = connection.execute(
                select(*_COLUMNS, table.c.envelope).where(table.c.id.in_(ids)).order_by(table.c.id)
            )
            return [(_row(one), one.envelope) for one in rows]

        return self.database.read(act)

    def settle(self, token: int, published: Iterable[int], failed: Mapping[int, Failure]) -> None:
        """Delete what was published, note what was not, and renew the lease.

        Raises:
            LeaseLost: another relay has taken the lease; nothing was changed.
        """
        gone = list(published)

        def act(connection: Connection) -> None:
            if not self._renewed(connection, token):
                message = "another relay publishes the outbox now"
                raise LeaseLost(message, hint="What this one published last may be published again, with the same ids.")
            if gone:
                connection.execute(delete(table).where(table.c.id.in_(gone)))
            for failure, ids in _grouped(failed).items():
                parks = failure.retry_s is None
                changed = {
                    "attempts": table.c.attempts + 1,
                    "error": failure.error,
                    "parked": parks,
                    "retry_at": None if parks else now() + failure.retry_s,
                }
                connection.execute(update(table).where(table.c.id.in_(ids)).values(changed))

        self.database.transact(act)

    def backlog(self) -> Backlog:
        """Return the numbers of messages."""
        is_due = and_(~table.c.parked, table.c.due_at <= now())
        query = select(
            func.count(case((is_due, 1))),
            func.count(case((and_(~table.c.parked, table.c.due_at > now()), 1))),
            func.count(case((table.c.parked, 1))),
            now() - func.min(case((is_due, table.c.due_at))),
        ).where(table.c.prefix == self._prefix)
        waiting, delayed, parked, oldest = self.database.read(lambda connection: connection.execute(query).one())
        return Backlog(waiting, delayed, parked, None if oldest is None else max(float(oldest), 0))

    def rows(self, *, ids: Sequence[str] = (), tasks: Sequence[str] = (), parked: bool = False) -> Iterator[Row]:
        """Yield messages in order: those whose task's id begins with one of `ids`, of these tasks, only parked ones."""
        last = 0
        while True:
            query = (
                select(*_COLUMNS)
                .where(table.c.id > last, *self._selected(ids, tasks, parked=parked))
                .order_by(table.c.id)
                .limit(_PAGE)
            )
            page = self.database.read(lambda connection, query=query: connection.execute(query).all())  # type: ignore[misc]
            yield from map(_row, page)
            if len(page) < _PAGE:
                return
            last = page[-1].id

    def retry(self, ids: Sequence[int]) -> int:
        """Let messages be published at the next attempt; return how many were there."""
        again = {"parked": False, "retry_at": None}
        return self._each_page(ids, lambda page: update(table).where(table.c.id.in_(page)).values(again))

    def discard(self, ids: Sequence[int]) -> int:
        """Delete messages: their tasks never run; return how many were there."""
        return self._each_page(ids, lambda page: delete(table).where(table.c.id.in_(page)))

    def now(self) -> float:
        """Return the database's time."""
        return self.database.read(lambda connection: float(connection.execute(select(now())).scalar_one()))

    def _each_page(self, ids: Sequence[int], statement: Callable[[Sequence[int]], Any]) -> int:
        done = 0
        for start in range(0, len(ids), _PAGE):
            step = statement(ids[start : start + _PAGE])
            done += self.database.transact(lambda connection, step=step: connection.execute(step).rowcount)  # type: ignore[misc]
        return done

    def _selected(self, ids: Sequence[str], tasks: Sequence[str], *, parked: bool) -> Iterator[ColumnElement[bool]]:
        yield table.c.prefix == self._prefix
        if ids:
            yield or_(*(table.c.task_id.startswith(one, autoescape=True) for one in ids))
        if tasks:
            yield table.c.task.in_(tasks)
        if parked:
            yield table.c.parked

    def _publishable(self) -> tuple[ColumnElement[bool], ...]:
        before = aliased(table)
        waits = or_(before.c.parked, before.c.retry_at > now())
        is_blocked = (
            select(before.c.id)
            .where(before.c.prefix == self._prefix, before.c.order_key == table.c.order_key, before.c.id < table.c.id)
            .where(waits)
            .exists()
        )
        return (
            table.c.prefix == self._prefix,
            ~table.c.parked,
            table.c.due_at <= now(),
            or_(table.c.retry_at.is_(None), table.c.retry_at <= now()),
            or_(table.c.order_key.is_(None), ~is_blocked),
        )

    def _of_token(self, token: int) -> tuple[ColumnElement[bool], ...]:
        return relay.c.prefix == self._prefix, relay.c.fencing_token == token

    def _renewed(self, connection: Connection, token: int) -> bool:
        # a lease that has expired and that no other relay wanted is this one's still
        step = update(relay).where(*self._of_token(token), relay.c.owner != "").values(expires_at=now() + self._lease_s)
        return connection.execute(step).rowcount == 1


def _row(found: Any) -> Row:  # noqa: ANN401 - SQLAlchemy's
    return Row(**{column.name: getattr(found, column.name) for column in _COLUMNS})


def _fitting(sizes: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Yield the ids of rows that fit into a window; the first one does."""
    total = 0
    for number, (row_id, size) in enumerate(sizes):
        total += size
        if number and total > WINDOW_BYTES:
            return
        yield row_id


def _grouped(failed: Mapping[int, Failure]) -> dict[Failure, list[int]]:
    found: dict[Failure, list[int]] = {}
    for row_id, failure in failed.items():
        found.setdefault(failure, []).append(row_id)
    return found
