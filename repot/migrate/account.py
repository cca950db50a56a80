"""The account of a move, as its journal has it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from repot.brokers.journal import Direction
from repot.migrate.identity import digest_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class Account:
    """What became of the messages that were reserved; counts of one queue, or of all.

    Attributes:
        reserved: taken from the source, each time that one was taken.
        delivered: the target has it.
        returned: back in the source queue.
        quarantined: kept as a dead letter.
        open: reserved, and not settled yet.
        maybe_twice: sent again, marked, because the first copy may have arrived.
        recognised: came back from the source although delivered, and was not sent again.
    """

    reserved: int = 0
    delivered: int = 0
    returned: int = 0
    quarantined: int = 0
    open: int = 0
    maybe_twice: int = 0
    recognised: int = 0

    @property
    def closes(self) -> bool:
        """Return whether each reserved message is accounted for."""
        return self.reserved == self.delivered + self.returned + self.quarantined + self.open

    def __add__(self, other: Account) -> Account:
        """Add two accounts."""
        names = [one.name for one in fields(self)]
        return Account(**{name: getattr(self, name) + getattr(other, name) for name in names})


def account_of(record: Mapping[str, str], queue: str, way: Direction = Direction.FORTH) -> Account:
    """Return the account of one queue; zeros before its first window."""
    return Account(**{one.name: int(record.get(f"{way}{one.name}:{queue}") or 0) for one in fields(Account)})


def total(record: Mapping[str, str], queues: Iterable[str], way: Direction = Direction.FORTH) -> Account:
    """Return the account of all queues of a move."""
    found = Account()
    for queue in queues:
        found += account_of(record, queue, way)
    return found


def digests(record: Mapping[str, str], queue: str, way: Direction = Direction.FORTH) -> tuple[str, str]:
    """Return the digests of what left the queue, and of what was delivered or quarantined."""
    return digest_of(sums(record, queue, "taken", way)), digest_of(sums(record, queue, "moved", way))


def sums(record: Mapping[str, str], queue: str, what: str, way: Direction = Direction.FORTH) -> tuple[int, int]:
    """Return the sums behind a digest: of what was `taken`, or `moved`."""
    upper, lower = (int(record.get(f"{way}{what}_{half}:{queue}") or 0) for half in ("upper", "lower"))
    return upper, lower
