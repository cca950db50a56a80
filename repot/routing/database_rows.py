"""The rows of rollouts in a database, within one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, case, delete, func, insert, null, or_, select, text, true
from sqlalchemy.dialects import mysql, postgresql, sqlite

from repot.database import rollout_tables as tables
from repot.database.schema import now
from repot.database.text import shortened, storable
from repot.store.shapes import record_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection, Select, Table

    from repot.database.connection import Database
    from repot.store.rules import R, Rule, T
    from repot.store.shapes import Shape

#: Rows that one transaction deletes, because they have expired or there are too many of them.
_PAGE = 500
#: More than one step adds.
_MOST = 10_000
#: Seconds. The server ends a transaction that stands still for so long: its process was stopped, or its machine is
#: gone, and every other process of the rollout waits for its locks.
_STALLED_S = 2


def read(database: Database, act: Callable[[Rows], T]) -> T:
    """Run `act` in one transaction that writes nothing.

    Raises:
        StoreUnreachable: the database is unavailable.
        StoreMisconfigured: no retry helps.
    """
    return database.read(lambda connection: act(Rows(connection)))


def write(database: Database, act: Callable[[Rows], T]) -> T:
    """Run `act` in one transaction, as `Database.transact`: it may run again after a lost answer.

    Raises:
        StoreUnreachable: the database is unavailable; the transaction may have been committed.
        StoreMisconfigured: no retry helps.
    """

    def transact(connection: Connection) -> T:
        rows = Rows(connection)
        rows.limit()
        return act(rows)

    return database.transact(transact)


class Rows:
    """The rows of rollouts within one transaction."""

    def __init__(self, connection: Connection) -> None:
        """Use a connection in a transaction."""
        self._connection = connection
        self._dialect = connection.dialect

    def limit(self) -> None:
        """Let the server end this transaction if it stands still."""
        if self._dialect.name == "postgresql":
            # one round trip, and for this transaction alone: a pool in between may give the connection to others
            name, milliseconds = "idle_in_transaction_session_timeout", str(_STALLED_S * 1000)
            self._connection.execute(select(func.set_config(name, milliseconds, true())))
        elif getattr(self._dialect, "is_mariadb", False):
            self._connection.execute(text(f"SET SESSION idle_transaction_timeout = {_STALLED_S}"))

    def lock(self, key: str) -> str:
        """Let no other transaction that locks this key go on before this one ends; return the key's only value."""
        table = tables.fields
        query = select(table.c.value).where(table.c.key == _key(key), table.c.field == "").with_for_update()
        found = self._connection.execute(query).scalar_one_or_none()
        if found is None:
            # another transaction that does the same is in the way until it ends, and then this one is repeated
            self._connection.execute(insert(table).values(key=_key(key), field="", value=""))
        return found or ""

    def apply(self, key: str, shape: Shape[R], rule: Rule[R, T], history: str = "") -> T:
        """Apply a rule to the record that named values of a key are; `history` is the key of its lines."""
        self.lock(key)
        found, at = self.fields(key), self.now()
        before = record_of(shape, {name: found[name] for name in shape.names if name in found})
        changed, answer = rule(before, at)
        if changed is not None:
            change = shape.change(before, changed, at)
            self.put(key, change.at(at))
            if change.line:
                self.append(history, change.line, change.most)
        return answer

    def now(self) -> float:
        """Return the database's time, in seconds since 1970."""
        return float(self._connection.execute(select(now())).scalar_one())

    def fields(self, key: str) -> dict[str, str]:
        """Return the named values of a key."""
        table = tables.fields
        query = select(table.c.field, table.c.value).where(table.c.key == _key(key), table.c.field != "")
        return {row.field: row.value for row in self._connection.execute(query)}

    def field(self, key: str, name: str) -> str | None:
        """Return a named value of a key; None without it."""
        table = tables.fields
        query = select(table.c.value).where(table.c.key == _key(key), table.c.field == _name(name))
        return self._connection.execute(query).scalar_one_or_none()

    def put(self, key: str, fields: Mapping[str, str], retention_s: float | None = None) -> None:
        """Put named values, for so many seconds; None for ever."""
        rows = [{"key": _key(key), "field": _name(name), "value": storable(fields[name])} for name in sorted(fields)]

        def change(new: Any) -> dict[str, Any]:  # noqa: ANN401 - SQLAlchemy's
            return {"value": new.value, "expires_at": new.expires_at}

        self._upsert(tables.fields, rows, change, expires_at=_after(retention_s))

    def add_new(self, key: str, names: Iterable[str], retention_s: float) -> list[str]:
        """Add names without a value, for so many seconds; return those that were not there. The key is locked."""
        table, wanted = tables.fields, {_name(name): name for name in names}
        query = select(table.c.field).where(table.c.key == _key(key), table.c.field.in_(sorted(wanted)))
        new = sorted(wanted.keys() - set(self._connection.scalars(query)))
        self.put(key, dict.fromkeys((wanted[one] for one in new), ""), retention_s)
        return [wanted[one] for one in new]

    def put_first(self, key: str, field: str, value: str) -> str:
        """Put a named value unless there is one; return the one that is stored."""
        table = tables.fields
        row = {"key": _key(key), "field": _name(field), "value": storable(value)}
        self._upsert(table, [row], lambda _: {"value": table.c.value})
        return str(self.field(key, field))

    def drop(self, key: str, *names: str) -> bool:
        """Delete named values; return whether there was one."""
        table = tables.fields
        wanted = table.c.field.in_(sorted(_name(one) for one in names))
        return bool(self._connection.execute(delete(table).where(table.c.key == _key(key), wanted)).rowcount)

    def forget(self, keys: Iterable[str]) -> None:
        """Delete all named values and all counts of some keys."""
        for table in (tables.fields, tables.counts):
            self._connection.execute(delete(table).where(table.c.key.in_(sorted(map(_key, keys)))))

    def counts(self, key: str) -> dict[str, int]:
        """Return the counts of a key."""
        table = tables.counts
        query = select(table.c.field, func.sum(table.c.count)).where(table.c.key == _key(key)).group_by(table.c.field)
        return {field: int(count) for field, count in self._connection.execute(query)}

    def count(self, key: str, counts: Mapping[str, int], part: int = 0) -> None:
        """Add to the counts of a key, in one of its parts."""
        table = tables.counts
        rows = [
            {"key": _key(key), "field": _name(name), "part": part, "count": counts[name]} for name in sorted(counts)
        ]
        self._upsert(table, rows, lambda new: {"count": table.c.count + new.count})

    def scores(self, key: str, since: float | None = None) -> dict[str, float]:
        """Return the members of a key with their scores; only those with this score, or a larger one."""
        table = tables.scores
        kept = or_(table.c.expires_at.is_(None), table.c.expires_at > now())
        query = select(table.c.member, table.c.score).where(table.c.key == _key(key), kept)
        if since is not None:
            query = query.where(table.c.score >= since)
        return {member: float(score) for member, score in self._connection.execute(query)}

    def raise_scores(self, key: str, scores: Mapping[str, float], retention_s: float | None = None) -> None:
        """Put the scores of members, for so many seconds, except of those that have a larger one."""
        table = tables.scores
        rows = [{"key": _key(key), "member": _name(name), "score": scores[name]} for name in sorted(scores)]

        def change(new: Any) -> dict[str, Any]:  # noqa: ANN401 - SQLAlchemy's
            score = case((table.c.score < new.score, new.score), else_=table.c.score)
            return {"score": score, "expires_at": new.expires_at}

        self._upsert(table, rows, change, expires_at=_after(retention_s))

    def keep_highest(self, key: str, most: int) -> None:
        """Delete the members with the lowest scores, beyond so many."""
        table = tables.scores
        query = select(table).where(table.c.key == _key(key)).order_by(table.c.score.desc(), table.c.member.desc())
        # MySQL takes no OFFSET without LIMIT
        self._delete(table, query.limit(_MOST).offset(most))

    def lines(self, key: str) -> list[str]:
        """Return the lines of a key, the first one first."""
        table = tables.lines
        query = select(table.c.line).where(table.c.key == _key(key)).order_by(table.c.number)
        return list(self._connection.scalars(query))

    def ends(self, key: str) -> list[str]:
        """Return the first and the last line of a key."""
        table = tables.lines
        query = select(table.c.line).where(table.c.key == _key(key)).limit(1)
        ways = (table.c.number, table.c.number.desc())
        return [line for way in ways for line in self._connection.scalars(query.order_by(way))]

    def append(self, key: str, line: str, most: int) -> None:
        """Add a line unless it is the last one already, and delete the first ones beyond so many."""
        table = tables.lines
        of_key = table.c.key == _key(key)
        query = select(table.c.number, table.c.line).where(of_key).order_by(table.c.number.desc()).limit(1)
        last = self._connection.execute(query).first()
        number = last.number + 1 if last else 1
        if last and last.line == line:
            return
        self._connection.execute(insert(table).values(key=_key(key), number=number, line=storable(line)))
        self._connection.execute(delete(table).where(of_key, table.c.number <= number - most))

    def clean(self) -> int:
        """Delete expired rows, some of each table; return how many."""
        found = 0
        for table in (tables.fields, tables.scores):
            over = table.c.expires_at <= now()
            found += self._delete(table, select(table).where(over).limit(_PAGE), over)
        return found

    def _delete(self, table: Table, query: Select[Any], *still: ColumnElement[bool]) -> int:
        """Delete the rows of a query that are still so; in one order, as `_upsert`."""
        names = [column.name for column in table.primary_key]
        rows = sorted(tuple(map(row.get, names)) for row in self._connection.execute(query).mappings())
        if not rows:
            return 0
        is_it = [table.c[name] == bindparam(f"its_{name}") for name in names]
        parameters = [{f"its_{name}": value for name, value in zip(names, row, strict=True)} for row in rows]
        return int(self._connection.execute(delete(table).where(*is_it, *still), parameters).rowcount)

    def _upsert(
        self,
        table: Table,
        rows: Sequence[Mapping[str, Any]],
        change: Callable[[Any], dict[str, Any]],
        **computed: ColumnElement[Any],
    ) -> None:
        """Insert rows, or change those that exist; in one order, so that no two transactions wait for each other."""
        if not rows:
            return
        step: Any
        if self._dialect.name in ("mysql", "mariadb"):
            of_mysql = mysql.insert(table).values(**computed)
            step = of_mysql.on_duplicate_key_update(**change(of_mysql.inserted))
        else:
            insert_into = postgresql.insert if self._dialect.name == "postgresql" else sqlite.insert
            other: Any = insert_into(table).values(**computed)
            step = other.on_conflict_do_update(index_elements=list(table.primary_key), set_=change(other.excluded))
        self._connection.execute(step, list(rows))


def _after(seconds: float | None) -> ColumnElement[Any]:
    return null() if seconds is None else now() + seconds


def _key(key: str) -> str:
    return shortened(key, tables.KEY_LENGTH)


def _name(name: str) -> str:
    return shortened(name, tables.NAME_LENGTH)
