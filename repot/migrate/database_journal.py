"""The journal of a move in the user's own database, in the tables of rollouts (`repot.brokers.journal_hashes`).

Each method is one transaction, by the database's clock; one that changes the journal holds the lock of its key.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from repot.brokers.journal import JournalStep
from repot.brokers.journal_hashes import AUDIT_LINES, LEASE, REQUESTS, JournalHashes, identities_in
from repot.database.connection import Database
from repot.errors import AccessRefused, AlreadyMoving, BrokerUnreachable, LeaseLost, StoreRefused, StoreUnreachable
from repot.routing.database_rows import read, write
from repot.store.lease import acquiring, renewing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from repot.brokers.journal import Direction, Identities, Lines
    from repot.config import WorkerSettings
    from repot.routing.database_rows import Rows

T = TypeVar("T")

#: The fields with the id of each queue's last step; a queue has one mover.
_LAST_STEP = "last_step:"


class DatabaseJournal:
    """The `Journal` on PostgreSQL, MySQL, MariaDB or SQLite."""

    def __init__(self, settings: WorkerSettings, name: str, direction: Direction) -> None:
        """Keep a move's journal in the lease store of the settings; connects on first use."""
        self._database = Database(settings)
        self._hashes = JournalHashes.of(name, f"{settings.lease_prefix}:", direction)
        self.key, self.direction = self._hashes.key, direction

    def read(self) -> dict[str, str]:
        """Return all fields."""
        return self._read(lambda rows: rows.fields(self.key))

    def now(self) -> float:
        """Return the database's time."""
        return self._read(lambda rows: rows.now())

    def create(self, fields: Mapping[str, str]) -> bool:
        """Create it unless it exists."""

        def act(rows: Rows) -> bool:
            if self._locked(rows):
                return False
            rows.put(self.key, fields)
            return True

        return self._write(act)

    def acquire(self, owner: str, lease_s: float, replaced: str = "") -> str:
        """Acquire the lease."""
        rule = acquiring(owner, lease_s, replaced, keeps_token=False)
        held = self._write(lambda rows: rows.apply(self.key, LEASE, rule))
        if held.token is None:
            raise AlreadyMoving.by(held.owner, held.remaining_s)
        return str(held.token)

    def release(self, token: str) -> None:
        """End the lease if this token is the last one."""
        self._write(lambda rows: rows.apply(self.key, LEASE, renewing(int(token), 0)))

    def step(self, token: str, lines: Lines) -> JournalStep:
        """Return the commands of a change; the first one is its queue and its id."""
        return JournalStep(self.key, token, ((lines.queue, uuid4().hex), *self._hashes.commands(lines)))

    def apply(self, step: JournalStep, lease_s: float) -> dict[str, str]:
        """Apply a step, renew the lease, and return what operators asked for."""
        (queue, id_), *commands = step.commands
        last = f"{_LAST_STEP}{queue}"

        def act(rows: Rows) -> dict[str, str]:
            found, now = self._locked(rows), rows.now()
            lease, _ = renewing(int(step.token), lease_s)(LEASE.read(found), now)
            if lease is None:
                raise LeaseLost.of_move(self.key)
            # a transaction whose answer was lost runs again, and adds nothing then
            if found.get(last) != id_:
                new = {last: id_, **LEASE.change(None, lease, now).at(now)}
                for command in commands:
                    self._run(rows, found, new, *command)
                rows.put(self.key, new)
            return {name: found.get(name, "") for name in REQUESTS}

        return self._write(act)

    def identities(self, queue: str, kind: str) -> Identities:
        """Return the identities of a kind."""
        keys = self._hashes.identities(queue, kind)
        return self._read(lambda rows: identities_in(map(rows.fields, keys)))

    def own(self, field: str, move: str) -> str:
        """Note an owner unless there is one."""

        def act(rows: Rows) -> str:
            rows.lock(self._hashes.owners)
            owner = rows.field(self._hashes.owners, field) or ""
            if not owner:
                rows.put(self._hashes.owners, {field: move})
            return owner

        return self._write(act)

    def disown(self, field: str, move: str) -> None:
        """Forget an owner."""

        def act(rows: Rows) -> None:
            rows.lock(self._hashes.owners)
            if rows.field(self._hashes.owners, field) == move:
                rows.drop(self._hashes.owners, field)

        self._write(act)

    def ask(self, put: Mapping[str, str], audit: str) -> None:
        """Set fields that the mover reads with its next step, and add to the audit."""

        def act(rows: Rows) -> None:
            rows.lock(self.key)
            rows.put(self.key, put)
            rows.append(self._hashes.audit, audit, AUDIT_LINES)

        self._write(act)

    def audit(self) -> list[str]:
        """Return the lines of the audit."""
        return self._read(lambda rows: rows.lines(self._hashes.audit))

    def _locked(self, rows: Rows) -> dict[str, str]:
        rows.lock(self.key)
        return rows.fields(self.key)

    def _run(
        self, rows: Rows, found: Mapping[str, str], new: dict[str, str], command: str, key: str, *words: str
    ) -> None:
        """Run a command; those that change fields of the journal change `new`, which is put at the end."""
        match command:
            case "HINCRBY":
                field, by = words
                new[field] = str(int(new.get(field) or found.get(field) or 0) + int(by))
            case "HSET" if key == self.key:
                new.update(zip(words[::2], words[1::2], strict=True))
            case "HSET":
                rows.put(key, dict(zip(words[::2], words[1::2], strict=True)))
            case "HDEL":
                rows.drop(key, *words)
            case "DEL":
                rows.forget([key, *words])
            case _:
                raise AssertionError(command)

    def _read(self, act: Callable[[Rows], T]) -> T:
        with _errors_of_a_broker():
            return read(self._database, act)

    def _write(self, act: Callable[[Rows], T]) -> T:
        with _errors_of_a_broker():
            return write(self._database, act)


@contextmanager
def _errors_of_a_broker() -> Iterator[None]:
    """Raise what a mover expects of the place of its journal, which for others is a broker."""
    try:
        yield
    except StoreRefused as error:
        raise AccessRefused(error.message, hint=error.hint) from error
    except StoreUnreachable as error:
        raise BrokerUnreachable(error.message, hint=error.hint) from error
