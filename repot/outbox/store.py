"""The outbox as its relay and people see it: messages that wait, and the lease of the one relay that publishes.

Instants are seconds since 1970, by the database's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, bindparam, case, delete, exists, func, literal, or_, select, update

from repot.brokers.moving import WINDOW_BYTES
from repot.database.connection import Database
from repot.database.outbox_tables import outbox as table
from repot.database.outbox_tables import relay
from repot.database.schema import now
from repot.errors import LeaseLost
from repot.store.lease import Lease, acquiring, releasing, renewing
from repot.store.rows import RowRecords

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection, Delete, Select, Update

    from repot.config import WorkerSettings
    from repot.store.lease import Held
    from repot.store.rules import Rule, T

#: Messages that are published together at most: what a relay's death may send twice.
WINDOW = 500
#: The same of those that have failed before.
_RETRIED = 100
#: Rows that one transaction reads for people, or changes.
_PAGE = 500


class State(StrEnum):
    """What a message waits for."""

    #: Its commit's relay, or its ETA.
    WAITING = "waiting"
    #: Another attempt: the last one failed.
    RETRYING = "retrying"
    #: An operator.
    PARKED = "parked"


@dataclass(frozen=True, slots=True)
class Row:
    """A message that was committed and is not published.

    Attributes:
        id: its place in the order; grows.
        side: where its root runs in a rollout; empty for a free choice.
        order_key: messages with the same one are published in order; None without one.
        due_at: when it may be published: at once, or at its ETA.
        next_at: no attempt before; 0 for at once.
        attempts: how often it could not be published.
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
    next_at: float
    attempts: int
    state: State
    error: str

    @property
    def is_parked(self) -> bool:
        """Whether it waits for an operator."""
        return self.state == State.PARKED


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a message could not be published.

    Attributes:
        retry_s: the time until the next attempt; None to park it.
        counts: whether it was tried; another one of its queue may have been.
    """

    error: str
    retry_s: float | None
    counts: bool = True


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


_COLUMNS = [table.c[one.name] for one in fields(Row)]


def _lease_values(lease: Lease) -> dict[str, Any]:
    return {"owner": lease.owner, "fencing_token": lease.token, "expires_at": lease.ends_at}


#: The lease of the one relay of each prefix.
_LEASES = RowRecords(
    relay, [relay.c.owner, relay.c.fencing_token, relay.c.expires_at], lambda row: Lease(*row), _lease_values
)


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
        return self._apply(acquiring(owner, self._lease_s, ended))

    def release(self, token: int) -> None:
        """End the lease, if its token is still this one."""
        self._apply(releasing(token))

    def renew(self, token: int) -> bool:
        """Extend the lease; return False if another relay has taken it."""
        return self._apply(renewing(token, self._lease_s))

    def window(self) -> list[tuple[Row, str]]:
        """Return messages to publish now with their envelopes, in order; at most 600 of about 32 MiB."""

        def act(connection: Connection) -> list[tuple[Row, str]]:
            sizes = [
                (int(one[0]), int(one[1]))
                for state, most in ((State.WAITING, WINDOW), (State.RETRYING, _RETRIED))
                for one in connection.execute(self._publishable(state).limit(most))
            ]
            ids = list(_fitting(sizes))
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
            if not _LEASES.apply(connection, renewing(token, self._lease_s), prefix=self._prefix):
                message = "another relay publishes the outbox now"
                raise LeaseLost(message, hint="What this one published last may be published again, with the same ids.")
            if gone:
                self._each(connection, delete(table), gone)
            for failure, ids in _grouped(failed).items():
                changed = {
                    "attempts": table.c.attempts + int(failure.counts),
                    "error": failure.error,
                    "state": State.PARKED if failure.retry_s is None else State.RETRYING,
                    "next_at": now() + (failure.retry_s or 0),
                }
                self._each(connection, update(table).values(changed), ids)

        self.database.transact(act)

    def backlog(self) -> Backlog:
        """Return the numbers of messages."""
        is_parked = table.c.state == State.PARKED
        is_due = and_(~is_parked, table.c.due_at <= now())
        query = select(
            func.count(case((is_due, 1))),
            func.count(case((and_(~is_parked, table.c.due_at > now()), 1))),
            func.count(case((is_parked, 1))),
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
        again = update(table).values({"state": State.RETRYING, "next_at": 0})
        return self._in_pages(again.where(table.c.state != State.WAITING), ids)

    def discard(self, ids: Sequence[int]) -> int:
        """Delete messages: their tasks never run; return how many were there."""
        return self._in_pages(delete(table), ids)

    def now(self) -> float:
        """Return the database's time."""
        return self.database.read(lambda connection: float(connection.execute(select(now())).scalar_one()))

    def _in_pages(self, step: Update | Delete, ids: Sequence[int]) -> int:
        done = 0
        for start in range(0, len(ids), _PAGE):
            page = ids[start : start + _PAGE]
            done += self.database.transact(lambda connection, page=page: self._each(connection, step, page))  # type: ignore[misc]
        return done

    def _each(self, connection: Connection, step: Update | Delete, ids: Sequence[int]) -> int:
        # row by row: for a list of them MariaDB reads the whole table, and waits for the rows of open transactions
        one = step.where(table.c.prefix == self._prefix, table.c.id == bindparam("its_id"))
        return connection.execute(one, [{"its_id": row_id} for row_id in ids]).rowcount

    def _selected(self, ids: Sequence[str], tasks: Sequence[str], *, parked: bool) -> Iterator[ColumnElement[bool]]:
        yield table.c.prefix == self._prefix
        if ids:
            yield or_(*(table.c.task_id.startswith(one, autoescape=True) for one in ids))
        if tasks:
            yield table.c.task.in_(tasks)
        if parked:
            yield table.c.state == State.PARKED

    def _publishable(self, state: State) -> Select[int, int]:
        # asked once: a function whose value changes is no condition for an index
        at = select(now()).scalar_subquery()
        # of the same key, and not published for now
        earlier = table.alias()
        is_held_back = exists().where(
            earlier.c.prefix == self._prefix,
            earlier.c.order_key == table.c.order_key,
            # written as in the partial index
            earlier.c.state != literal(State.WAITING.value, literal_execute=True),
            earlier.c.id < table.c.id,
        )
        return (
            select(table.c.id, func.length(table.c.envelope))
            .where(table.c.prefix == self._prefix, table.c.state == state, table.c.next_at <= at, ~is_held_back)
            .order_by(table.c.next_at, table.c.id)
        )

    def _apply(self, rule: Rule[Lease, T]) -> T:
        return self.database.transact(lambda connection: _LEASES.apply(connection, rule, prefix=self._prefix))


def _row(found: Any) -> Row:  # noqa: ANN401 - SQLAlchemy's
    return Row(**{column.name: getattr(found, column.name) for column in _COLUMNS} | {"state": State(found.state)})


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
