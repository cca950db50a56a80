"""Where a move's journal is kept, and in which order a window is therefore written, settled and committed.

| journal | the step that decides | after a death between the write and the commit |
| --- | --- | --- |
| on the target | one script writes the messages and settles the window | the journal knows: nothing is sent twice |
| on the source | one script removes the messages and settles the window | all of it is sent again, marked |
| beside both | settled after the confirms, before the acknowledgements | unsettled: marked; settled: recognised |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from repot.brokers.journal import Direction
from repot.brokers.moving import KeepsJournals, SettlesWithJournal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from repot.brokers.journal import Journal
    from repot.brokers.moving import MoveSource, MoveTarget, Outgoing
    from repot.brokers.publishing import Receipt
    from repot.migrate.leases import LeasedJournal
    from repot.migrate.window import Entry, Window


class Placement(Protocol):
    """One place for a journal."""

    journal: Journal
    #: Whether the journal knows for certain what was written.
    is_certain: bool

    def write(self, window: Window, sending: Sending) -> tuple[Receipt, ...]:
        """Send messages of a window to the target; note in `window` what is certain by that."""
        ...

    def finish(self, window: Window, journal: LeasedJournal) -> None:
        """Settle a window of which `window.written` was written, and commit it on the source."""
        ...


@dataclass(frozen=True, slots=True)
class Sending:
    """Messages of a window that are sent together.

    Attributes:
        journal: that of the move.
        on_wait: called about once a second while the target accepts nothing.
        on_sent: called when all are sent and not confirmed yet, by a target that confirms later.
    """

    entries: Sequence[Entry]
    outgoing: Sequence[Outgoing]
    journal: LeasedJournal
    on_wait: Callable[[], None]
    on_sent: Callable[[], None]


@dataclass(slots=True)
class OnTarget:
    """The journal is on the target: writing and settling are one step."""

    journal: Journal
    target: KeepsJournals
    is_certain = True

    def write(self, window: Window, sending: Sending) -> tuple[Receipt, ...]:
        """Send and settle: all messages arrive, or none."""
        receipts = self.target.deliver_with(sending.outgoing, sending.journal.step(window.settled(sending.entries)))
        if receipts[0].is_confirmed:
            window.written += sending.entries
            window.is_settled = True
        return receipts

    def finish(self, window: Window, journal: LeasedJournal) -> None:
        """Commit on the source."""
        if not window.is_settled:
            journal.apply(window.settled())
        window.reservation.commit(entry.taken.id for entry in window.written)


@dataclass(slots=True)
class OnSource:
    """The journal is on the source: settling and committing are one step."""

    journal: Journal
    target: MoveTarget
    is_certain = False

    def write(self, window: Window, sending: Sending) -> tuple[Receipt, ...]:
        """Send."""
        return _send(self.target, window, sending)

    def finish(self, window: Window, journal: LeasedJournal) -> None:
        """Settle and commit."""
        assert isinstance(window.reservation, SettlesWithJournal)
        window.reservation.settle(
            [entry.taken.id for entry in window.written], journal.step(window.settled(comes_back=False))
        )


@dataclass(slots=True)
class Beside:
    """The journal is on neither broker."""

    journal: Journal
    target: MoveTarget
    is_certain = False

    def write(self, window: Window, sending: Sending) -> tuple[Receipt, ...]:
        """Send."""
        return _send(self.target, window, sending)

    def finish(self, window: Window, journal: LeasedJournal) -> None:
        """Settle, then commit; what is not committed comes back and is recognised."""
        journal.apply(window.settled())
        window.reservation.commit(entry.taken.id for entry in window.written)


def _send(target: MoveTarget, window: Window, sending: Sending) -> tuple[Receipt, ...]:
    receipts = target.deliver(sending.outgoing, sending.on_wait, sending.on_sent)
    window.written += [entry for entry, one in zip(sending.entries, receipts, strict=True) if one.is_confirmed]
    return receipts


def place(
    source: MoveSource, target: MoveTarget, name: str, way: Direction, beside: Callable[[], Journal]
) -> Placement:
    """Return where the journal of a move is: on the target if it keeps journals, else on the source, else `beside`.

    What is given `BACK` has its journal where the move had it: there the former source is the target.
    """
    on_source = isinstance(source, KeepsJournals)
    if isinstance(target, KeepsJournals) and not (on_source and way is Direction.BACK):
        return OnTarget(target.journal(name, direction=way), target)
    if isinstance(source, KeepsJournals):
        return OnSource(source.journal(name, direction=way), target)
    return Beside(beside(), target)
