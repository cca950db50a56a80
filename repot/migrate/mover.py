"""Move the messages of one queue, window by window.

A window is reserved on the source, opened in the journal, written to the target, settled in the journal and committed
on the source; `repot/migrate/placement.py` says which of these happen in one step. Memory holds one window.

What an earlier mover left is put in order first (`_recover`), and again after each failure of a broker: a reservation
that outlived its mover is adopted, a window that went back to the queue is written off, and messages that come back
although they were delivered are recognised and not sent again.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, replace
from time import time
from typing import TYPE_CHECKING, Protocol

from repot.brokers.headers import MoveStamp
from repot.brokers.moving import HoldsDelayed, MoveSource, MoveTarget
from repot.brokers.publishing import PublishOutcome
from repot.deadletter.reason import Reason
from repot.errors import BrokerUnreachable, MoveStopped, ReservationLost
from repot.migrate.identity import identity_of, task_id
from repot.migrate.placement import Sending
from repot.migrate.translate import Quarantine, stamped
from repot.migrate.window import Entry, Window, abandoned, counted, marked, nothing, recognised

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from repot.brokers.headers import MovedBy
    from repot.brokers.journal import Identities, JournalStep, Lines
    from repot.brokers.message import Message
    from repot.brokers.moving import Outgoing, QueueReader
    from repot.brokers.publishing import Receipt
    from repot.brokers.reservation import Reservation, TakenMessage
    from repot.migrate.control import Control
    from repot.migrate.placement import Placement
    from repot.migrate.translate import Translated, Translation

log = logging.getLogger(__name__)

#: Phases after the queue itself: what is not due yet, and what has become due meanwhile.
_DELAYED, _DUE = "delayed", "due"

#: What a broker that fails raises here; after it the mover looks again where it stands.
DISTURBANCES = (BrokerUnreachable, ReservationLost)


@dataclass(frozen=True, slots=True)
class Route:
    """One queue's way: from where, how, and in which move. What the target cannot hold is sent back to the source.

    Attributes:
        name: of the move.
        queue: the queue that is read.
        account: the queue in the journal: the move's source queue, also when what was moved is given back.
        moved: which messages are read; None for all.
        origin: what their stamps say of their origin.
    """

    name: str
    queue: str
    source: SourceBroker
    translation: Translation
    account: str
    moved: MovedBy | None = None
    origin: str = ""
    #: Raises MoveRefused where one of these messages must not be moved.
    check: Callable[[Iterable[Message]], None] = lambda _: None


class QueueMover:
    """Moves one queue; `run` returns when it is empty, or the control says so."""

    def __init__(self, route: Route, placement: Placement, token: str, control: Control) -> None:
        """Move with the fencing token of the journal's lease."""
        self._route, self._placement, self._token, self._control = route, placement, token, control
        self._journal = placement.journal
        self._reader: QueueReader | None = None
        control.alive = self._keep_alive
        self._window = self._number = 0
        #: What is read when the queue is empty.
        self._phases = [_DELAYED, _DUE]
        #: Identities of messages that were delivered and may come back, and of those that may have been sent.
        self._written: Counter[str] = Counter()
        self._maybe: Identities = {}

    def run(self) -> None:
        """Move until the queue is empty, or the control ends it.

        Raises:
            LeaseLost: another mover has the lease.
            MoveStopped: the target takes nothing, or the operator asked to stop.
        """
        try:
            while not self._has_ended():
                pass
        finally:
            self._leave()

    def recover(self) -> None:
        """Put in order what was left when the last mover was interrupted, and move nothing more.

        Raises:
            LeaseLost: another mover has the lease.
            MoveStopped: the target takes nothing, or the operator asked to stop.
            BrokerUnreachable: a broker did not answer.
            ReservationLost: what was left ended meanwhile.
        """
        try:
            self._recover()
        finally:
            self._leave()

    def _has_ended(self) -> bool:
        """Move a window, or wait after a failure; return whether the queue's move is over."""
        try:
            if not self._control.goes_on():
                return True
            if self._reader is None:
                self._recover()
            return not self._move_window() and not self._turn() and self._control.is_over()
        except DISTURBANCES as error:
            self._leave()
            self._control.disturbed(error)
            return False

    def _leave(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _turn(self) -> bool:
        """Go on with what is not due yet, then with what has become due; return False at the end."""
        source = self._route.source
        if not self._phases or not isinstance(source, HoldsDelayed) or self._control.follows:
            return False
        self._leave()
        if self._phases.pop(0) == _DELAYED:
            self._reader = source.delayed_reader(
                self._route.queue, lease_s=self._control.lease_s, moved=self._route.moved
            )
        else:
            self._reader = self._queue_reader()
        return True

    def _queue_reader(self) -> QueueReader:
        route, window = self._route, self._control.window_size()
        return route.source.reader(route.queue, window=window, lease_s=self._control.lease_s, moved=route.moved)

    # -- one window

    def _move_window(self) -> int:
        """Move one window; return how many messages were taken."""
        assert self._reader is not None
        limit = self._control.window_size()
        reservation = self._reader.take(limit, self._reservation_name(self._window + 1))
        fresh = self._without_recognised(reservation)
        try:
            self._route.check(one.message for one in fresh)
        except BaseException:
            reservation.give_back()
            raise
        if fresh:
            self._window += 1
            self._finish(self._open(reservation, fresh))
        return len(reservation.messages)

    def _open(self, reservation: Reservation, taken: Sequence[TakenMessage]) -> Window:
        certain: list[str] = []
        entries = [self._entry(one, certain) for one in taken]
        window = Window(self._route.account, self._window, reservation, entries)
        self._apply(window.opened(self._number, certain))
        return window

    def _entry(self, taken: TakenMessage, certain: list[str]) -> Entry:
        """Return a message with its sequence number: the old one if it may have been sent before."""
        identity = identity_of(taken.message)
        numbers = self._maybe.get(identity)
        if not numbers:
            self._number += 1
            return Entry(taken, identity, self._number)
        number = numbers.pop(0)
        if not numbers:
            del self._maybe[identity]
            certain.append(identity)
        return Entry(taken, identity, number, maybe_twice=True)

    def _finish(self, window: Window) -> None:
        """Write a window, settle and commit it; what was not written when the move is stopped goes back."""
        try:
            self._write(window)
        except MoveStopped:
            self._settle(window)
            window.reservation.give_back()
            raise
        self._settle(window)

    def _settle(self, window: Window) -> None:
        self._placement.finish(window, lambda: self._step(window.settled()))
        self._control.moved(window)

    def _without_recognised(self, reservation: Reservation) -> list[TakenMessage]:
        """Commit messages that were delivered before and came back; return the others."""
        known = self._recognised(reservation) if self._written else []
        if known:
            reservation.commit(known)
            self._apply(recognised(self._route.account, len(known)))
        return [one for one in reservation.messages if one.id not in known]

    def _recognised(self, reservation: Reservation) -> list[str]:
        found = []
        for one in reservation.messages:
            identity = identity_of(one.message)
            # without an id only the broker's mark distinguishes it from another message with the same body
            if self._written[identity] > 0 and (one.is_redelivered or task_id(one.message)):
                self._written[identity] -= 1
                found.append(one.id)
        return found

    # -- writing

    def _write(self, window: Window) -> None:
        """Send everything; wait while the target takes nothing, and quarantine what it will never take."""
        translated = {entry.taken.id: self._translated(entry) for entry in window.entries}
        pending = window.entries
        while pending:
            self._write_to_source(
                window, [one for one in pending if _is_for_source(translated[one.taken.id])], translated
            )
            if pending := window.pending:
                self._send(window, pending, translated)
                pending = window.pending

    def _send(self, window: Window, pending: Sequence[Entry], translated: dict[str, Translated]) -> None:
        outgoing = [_outgoing(translated[entry.taken.id]) for entry in pending]
        sending = Sending(pending, outgoing, lambda: self._step(window.settled(pending)))
        receipts = self._placement.write(window, sending, self._wait)
        refusals = []
        for entry, receipt in zip(pending, receipts, strict=True):
            if receipt.is_too_large:
                translated[entry.taken.id] = self._quarantined(entry, Reason.TOO_LARGE, receipt.reason)
            elif not receipt.is_confirmed:
                refusals.append(receipt.reason)
        self._mark(window, _unknown(pending, receipts), translated)
        if refusals:
            self._control.target_refuses(refusals[0], self._wait)

    def _mark(self, window: Window, entries: Sequence[Entry], translated: dict[str, Translated]) -> None:
        """Mark messages that are sent again although the first copy may have arrived."""
        if entries and self._placement.is_certain:
            message = "the target did not answer; its journal says what it has"
            raise BrokerUnreachable(message)
        again = [entry for entry in entries if not entry.maybe_twice]
        for entry in again:
            entry.maybe_twice = True
            translated[entry.taken.id] = self._marked(translated[entry.taken.id], entry)
        if again:
            self._apply(marked(window.queue, len(again)))

    def _marked(self, found: Translated, entry: Entry) -> Translated:
        if isinstance(found, Quarantine):
            return replace(found, dead_letter=self._stamped(found.dead_letter, entry))
        return self._stamped(found, entry)

    def _write_to_source(self, window: Window, entries: Sequence[Entry], translated: dict[str, Translated]) -> None:
        """Quarantine on the source what the target cannot hold."""
        if not entries:
            return
        dead_letters = [_outgoing(translated[entry.taken.id]) for entry in entries]
        receipts = self._route.source.deliver(dead_letters, self._wait)
        if refused := next((one for one in receipts if not one.is_confirmed), None):
            message = f"what the target cannot hold cannot be quarantined on the source either: {refused.reason}"
            raise MoveStopped(message, hint="Make room for the dead-letter queue on the source, and resume.")
        window.written += entries

    def _translated(self, entry: Entry) -> Translated:
        found = self._route.translation.translate(entry.taken.message, time())
        entry.quarantined = isinstance(found, Quarantine)
        return self._marked(found, entry)

    def _quarantined(self, entry: Entry, reason: Reason, why: str) -> Quarantine:
        entry.quarantined = True
        found = self._route.translation.quarantine(entry.taken.message, reason, why)
        return replace(found, dead_letter=self._stamped(found.dead_letter, entry))

    def _stamped(self, outgoing: Outgoing, entry: Entry) -> Outgoing:
        stamp = MoveStamp(self._route.name, entry.number, self._route.origin)
        return stamped(outgoing, stamp, maybe_twice=entry.maybe_twice)

    # -- what an earlier mover left

    def _recover(self) -> None:
        """Put in order what was left when the last mover, or this one, was interrupted."""
        # the fencing token first: another mover may have taken over
        self._apply(nothing(self._route.account))
        self._control.check_target()
        record = self._journal.read()
        queue, way = self._route.account, self._journal.direction
        self._window, self._number = int(record.get(f"{way}window:{queue}") or 0), int(record.get("sequence") or 0)
        self._reader = self._queue_reader()
        open_now = self._journal.identities(queue, "open")
        for name in self._reader.left(self._reservation_prefix):
            if self._take_over(name, open_now):
                open_now = {}
        if open_now:
            self._apply(abandoned(queue, open_now, may_be_written=not self._placement.is_certain))
        self._written = counted(self._journal.identities(queue, "written"))
        self._maybe = self._journal.identities(queue, "maybe")

    def _take_over(self, name: str, open_now: Identities) -> bool:
        """Settle a reservation that outlived its mover; return whether it was that of the open window."""
        assert self._reader is not None
        number = int(name.split(".")[-2])
        try:
            reservation = self._reader.adopt(name, self._reservation_name(number))
        except ReservationLost:
            return False
        if number == self._window and open_now:
            self._finish_open(reservation, open_now)
            return True
        if number == self._window:
            # settled, and not committed yet; the journal says which of it was written
            written = counted(self._journal.identities(self._route.account, "written"))
            reservation.commit(_those_in(written, reservation))
        reservation.give_back()
        return False

    def _finish_open(self, reservation: Reservation, open_now: Identities) -> None:
        """Write the window that was open, under its sequence numbers; mark it where it may have been written."""
        numbers = {identity: list(found) for identity, found in open_now.items()}
        marks = not self._placement.is_certain
        entries = []
        for one in reservation.messages:
            identity = identity_of(one.message)
            entries.append(Entry(one, identity, numbers[identity].pop(0), maybe_twice=marks))
        window = Window(self._route.account, self._window, reservation, entries)
        if marks:
            self._apply(marked(window.queue, len(entries)))
        self._finish(window)

    # -- the journal

    def _apply(self, lines: Lines) -> None:
        self._control.requests(self._journal.apply(self._step(lines), self._control.lease_s))

    def _step(self, lines: Lines) -> JournalStep:
        return self._journal.step(self._token, lines)

    def _wait(self) -> None:
        """Keep everything alive while the target makes the mover wait."""
        self._control.renew()
        self._keep_alive()

    def _keep_alive(self) -> None:
        self._apply(nothing(self._route.account))
        if self._reader is not None:
            self._reader.keep_alive()

    def _reservation_name(self, window: int) -> str:
        return f"{self._reservation_prefix}{window}.{self._token}"

    @property
    def _reservation_prefix(self) -> str:
        return f"{self._journal.direction}move.{self._route.name}."


class SourceBroker(MoveSource, MoveTarget, Protocol):
    """A source, which also keeps what the target cannot hold."""


def _those_in(written: Counter[str], reservation: Reservation) -> list[str]:
    found = []
    for one in reservation.messages:
        identity = identity_of(one.message)
        if written[identity] > 0:
            written[identity] -= 1
            found.append(one.id)
    return found


def _unknown(entries: Sequence[Entry], receipts: Sequence[Receipt]) -> list[Entry]:
    return [one for one, receipt in zip(entries, receipts, strict=True) if receipt.outcome is PublishOutcome.UNKNOWN]


def _is_for_source(found: Translated) -> bool:
    return isinstance(found, Quarantine) and found.at_source


def _outgoing(found: Translated) -> Outgoing:
    return found.dead_letter if isinstance(found, Quarantine) else found
