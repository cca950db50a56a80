"""A window: the messages that are reserved, written and committed together, and its lines in the journal."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repot.brokers.journal import Identities, Lines
from repot.migrate.identity import sums_of
from repot.migrate.translate import Quarantine

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from repot.brokers.reservation import Reservation, TakenMessage
    from repot.migrate.translate import Translated


@dataclass(slots=True)
class Entry:
    """One message of a window.

    Attributes:
        translated: what is sent for it, without the stamp of the move.
        number: its sequence number in the queue's move.
        maybe_twice: it may have been sent before.
    """

    taken: TakenMessage
    identity: str
    translated: Translated
    number: int = 0
    maybe_twice: bool = False

    @property
    def quarantined(self) -> bool:
        """Return whether it is kept as a dead letter instead of being delivered."""
        return isinstance(self.translated, Quarantine)

    @property
    def has_place(self) -> bool:
        """Return whether a queue is named that it goes to; there may be none for dead letters."""
        found = self.translated
        return bool((found.dead_letter if isinstance(found, Quarantine) else found).queue)

    @property
    def goal(self) -> str:
        """Return the queue that it is delivered to; none if it is quarantined."""
        return "" if isinstance(self.translated, Quarantine) else self.translated.queue


@dataclass(slots=True)
class Window:
    """The messages of one reservation that are to be written; `number` counts the windows of a queue.

    `written` are those that the target has, or the quarantine; `is_settled` says that the journal knows.
    """

    queue: str
    number: int
    reservation: Reservation
    entries: list[Entry]
    written: list[Entry] = field(default_factory=list)
    is_settled: bool = False

    @property
    def pending(self) -> list[Entry]:
        """Return what is not written yet."""
        if not self.written:
            return self.entries
        if len(self.written) == len(self.entries):
            return []
        done = {entry.taken.id for entry in self.written}
        return [entry for entry in self.entries if entry.taken.id not in done]

    def opened(self, next_number: int, certain: Sequence[str]) -> Lines:
        """Return the lines for its start; `certain` are identities that need not be expected any more."""
        upper, lower = sums_of(entry.identity for entry in self.entries)
        count = len(self.entries)
        return Lines(
            self.queue,
            add={
                "reserved": count,
                "open": count,
                "maybe_twice": sum(entry.maybe_twice for entry in self.entries),
                "taken_upper": upper,
                "taken_lower": lower,
            },
            put={"window": str(self.number), "sequence": str(next_number)},
            open=identities(self.entries),
            certain=certain,
        )

    def settled(self, more: Sequence[Entry] = (), *, comes_back: bool = True) -> Lines:
        """Return the lines for its end: what was written, and `more`, is delivered or quarantined; the rest goes back.

        A message is quarantined if it is a dead letter now. `comes_back` says whether one that was written may come
        from the source again, and is to be remembered.
        """
        written = [*self.written, *more]
        upper, lower = sums_of(entry.identity for entry in written)
        all_upper, all_lower = sums_of(entry.identity for entry in self.entries)
        quarantined = sum(entry.quarantined for entry in written)
        return Lines(
            self.queue,
            add={
                "open": -len(self.entries),
                "delivered": len(written) - quarantined,
                "quarantined": quarantined,
                "returned": len(self.entries) - len(written),
                "moved_upper": upper,
                "moved_lower": lower,
                "taken_upper": upper - all_upper,
                "taken_lower": lower - all_lower,
            },
            written=identities(written) if comes_back else None,
            generation=self.number,
            clears_open=True,
        )


def abandoned(queue: str, open_now: Identities, *, may_be_written: bool) -> Lines:
    """Return the lines for a window whose messages went back to the queue without its mover."""
    count = sum(map(len, open_now.values()))
    upper, lower = sums_of(one for one, numbers in open_now.items() for _ in numbers)
    return Lines(
        queue,
        add={"open": -count, "returned": count, "taken_upper": -upper, "taken_lower": -lower},
        maybe=open_now if may_be_written else None,
        clears_open=True,
    )


def identities(entries: Iterable[Entry]) -> Identities:
    """Return the identities of messages with their sequence numbers."""
    found: Identities = {}
    for entry in entries:
        found.setdefault(entry.identity, []).append(entry.number)
    return found


def counted(identities: Identities) -> Counter[str]:
    """Return how many messages have each identity."""
    return Counter({identity: len(numbers) for identity, numbers in identities.items()})


def turned(queue: str, known: Identities) -> Lines:
    """Return the lines for a change of the move's direction; `known` are messages that are in the target already."""
    return Lines(queue, known=known, forgets=True)


def marked(queue: str, count: int) -> Lines:
    """Return the lines for messages of the open window that are sent again and marked."""
    return Lines(queue, add={"maybe_twice": count})


def recognised(queue: str, count: int) -> Lines:
    """Return the lines for messages that came back although they were delivered, and are removed."""
    return Lines(queue, add={"recognised": count})


def nothing(queue: str) -> Lines:
    """Return the lines that only renew the lease."""
    return Lines(queue)
