"""A journal as hashes and a list, the same on a Redis and in a database: their keys, and the commands of a change.

`{prefix}repot.move:{NAME}` is the hash of its fields; the keys of the rest begin with its name: the list of the audit,
and hashes of identities for each queue. Commands are named as on Redis: HINCRBY, HSET, HDEL and DEL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.brokers.journal import GENERATIONS
from repot.store.lease import LeaseFields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from repot.brokers.journal import Direction, Identities, Lines

#: The lease of the one mover, among the fields of its journal.
LEASE = LeaseFields("lease_until")
#: Lines of the audit that are kept.
AUDIT_LINES = 1000
#: Fields that operators set, and a mover reads with each step.
REQUESTS = ("wanted", "rate", "max_depth")
#: Pairs in one HSET: a Lua function takes some 8,000 arguments.
_PAIRS = 1000


@dataclass(frozen=True, slots=True)
class JournalHashes:
    """The keys of one journal, `key` being that of its fields, in one direction of its move."""

    key: str
    direction: Direction
    #: The key of what belongs to which move, of all journals of this place.
    owners: str

    @classmethod
    def of(cls, name: str, prefix: str, direction: Direction) -> JournalHashes:
        """Return those of a move; the hash tag keeps what belongs to it on one node of a cluster."""
        return cls(f"{prefix}repot.move:{{{name}}}", direction, f"{prefix}repot.move:owners")

    @property
    def audit(self) -> str:
        """Return the key of the audit."""
        return f"{self.key}:audit"

    def identities(self, queue: str, kind: str) -> list[str]:
        """Return the keys of identities of a kind."""
        return [*self._written(queue), self._of(queue, "known")] if kind == "written" else [self._of(queue, kind)]

    def commands(self, lines: Lines) -> Iterator[tuple[str, ...]]:
        """Yield the commands of a change."""
        queue = lines.queue
        for name, by in lines.add.items():
            if by:
                yield "HINCRBY", self.key, f"{self.direction}{name}:{queue}", str(by)
        values = {f"{self.direction}{name}:{queue}": value for name, value in lines.put.items()}
        if values:
            yield "HSET", self.key, *(word for pair in values.items() for word in pair)
        opened = self._of(queue, "open")
        if lines.open is not None or lines.clears_open:
            yield "DEL", opened
        yield from _remember(opened, lines.open)
        if lines.forgets:
            yield "DEL", self._of(queue, "maybe"), self._of(queue, "known"), *self._written(queue)
        if lines.written is not None:
            written = self._written(queue)[lines.generation % GENERATIONS]
            yield "DEL", written
            yield from _remember(written, lines.written)
        yield from _remember(self._of(queue, "maybe"), lines.maybe)
        yield from _remember(self._of(queue, "known"), lines.known)
        for start in range(0, len(lines.certain), _PAIRS):
            yield "HDEL", self._of(queue, "maybe"), *lines.certain[start : start + _PAIRS]

    def _of(self, queue: str, kind: str) -> str:
        return f"{self.key}:{queue}:{self.direction}{kind}"

    def _written(self, queue: str) -> list[str]:
        return [f"{self._of(queue, 'written')}:{number}" for number in range(GENERATIONS)]


def identities_in(hashes: Iterable[Mapping[str, str]]) -> Identities:
    """Return the identities that some hashes have together."""
    found: Identities = {}
    for stored in hashes:
        for identity, numbers in stored.items():
            found.setdefault(identity, []).extend(map(int, numbers.split(",")))
    return found


def _remember(key: str, identities: Identities | None) -> Iterator[tuple[str, ...]]:
    found = list((identities or {}).items())
    for start in range(0, len(found), _PAIRS):
        words = (word for one, numbers in found[start : start + _PAIRS] for word in (one, ",".join(map(str, numbers))))
        yield "HSET", key, *words
