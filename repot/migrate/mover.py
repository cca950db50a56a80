"""Move the messages of one queue, window by window.

A window is reserved on the source, opened in the journal, written to the target, settled in the journal and committed
on the source; `repot/migrate/placement.py` says which of these happen in one step. The next window is reserved and
translated while the target confirms the last one: memory holds two.

What an earlier mover left is put in order first (`_recover`), and again after each failure of a broker: a reservation
that outlived its mover is adopted, a window that went back to the queue is written off, and messages that come back
although they were delivered are recognised and not sent again.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from repot.brokers.moving import HoldsDelayed, Release
from repot.errors import AlreadyMoving, BrokerUnreachable, LeaseLost, MoveStopped, RepotError, ReservationLost
from repot.logs import get_logger
from repot.masking import masked
from repot.migrate.garbage import seldom_collected
from repot.migrate.identity import identity_of, task_id
from repot.migrate.read_ahead import ReadAhead
from repot.migrate.window import Window, abandoned, counted, marked, nothing, recognised
from repot.migrate.writer import WindowWriter
from repot.telemetry.messages import Destination, sending_many

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from repot.brokers.journal import Identities
    from repot.brokers.moving import QueueReader
    from repot.brokers.reservation import Reservation, TakenMessage
    from repot.migrate.control import Control
    from repot.migrate.placement import Placement
    from repot.migrate.route import Route
    from repot.migrate.window import Entry

log = get_logger(__name__)

#: Phases after the queue itself: what is not due yet, and what has become due meanwhile.
_DELAYED, _DUE = "delayed", "due"

#: What a broker that fails raises here; after it the mover looks again where it stands.
DISTURBANCES = (BrokerUnreachable, ReservationLost)


class QueueMover:
    """Moves one queue; `run` returns when it is empty, or the control says so."""

    def __init__(self, route: Route, placement: Placement, control: Control) -> None:
        """Move as `control` says; it has the lease of the journal."""
        self._route, self._placement, self._control = route, placement, control
        self._journal = placement.journal
        self._reader: QueueReader | None = None
        control.alive, control.let_go = self._keep_alive, self._let_go
        self._ahead = ReadAhead(route.translation, route.look)
        self._writer = WindowWriter(route, placement, control, self._wait)
        self._window = self._number = 0
        #: The window that is in the journal and not settled.
        self._open_window: Window | None = None
        #: Whether nothing of the queue may be on both brokers.
        self.is_settled = False
        self._is_empty = False
        #: What is still read when the queue is empty.
        self._phases: list[str] = []
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
            with seldom_collected():
                while not self._has_ended():
                    pass
            self._unstage()
        except (LeaseLost, AlreadyMoving):
            # what is staged is the other mover's
            raise
        except RepotError:
            self._unstage()
            raise
        finally:
            self._leave()

    def recover(self) -> None:
        """Recover what the last mover left when it was interrupted, and move nothing more.

        Raises:
            LeaseLost: another mover has the lease.
            MoveStopped: the target takes nothing, or the operator asked to stop.
            BrokerUnreachable: a broker did not answer.
            ReservationLost: what was left ended meanwhile.
        """
        try:
            self._recover()
            assert self._reader is not None
            self._reader.unstage(self._release_of)
        finally:
            self._leave()

    def _has_ended(self) -> bool:
        """Move a window, or wait after a failure; return whether the queue's move is over."""
        try:
            if not self._control.goes_on():
                return True
            if self._reader is None:
                self._recover()
            self._is_empty = not self._move_window() and not self._turn()
            self._control.answered()
            return self._is_empty and self._control.is_over()
        except DISTURBANCES as error:
            self._leave()
            self._control.disturbed(error)
            return False

    def _leave(self) -> None:
        self._open_window = None
        self._ahead.give_back()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _let_go(self) -> None:
        """Hold nothing for a while."""
        self._unstage()
        self._leave()

    def _unstage(self) -> None:
        """Let the queue's other consumers have what is staged, unless the target may have it."""
        self._ahead.give_back()
        if self._reader is None or self._open_window:
            return
        try:
            self._reader.unstage(self._release_of)
            # an answer: what was committed is gone
            self._reader.keep_alive()
            # what may have been sent is in a queue that is empty only if a consumer has it
            self.is_settled = self._is_empty or not self._maybe
        except DISTURBANCES as error:
            text = f"what is staged waits for the next start of the move: {masked(error.message)}"
            log.warning(text, extra={"action": "move_interrupted"})

    def _release_of(self, taken: TakenMessage) -> Release:
        """Return what becomes of a staged message that is not moved."""
        identity = identity_of(taken.message)
        if self._written[identity] > 0:
            self._written[identity] -= 1
            return Release.GONE
        return Release.MARKED if taken.may_run or identity in self._maybe else Release.BACK

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
        self.is_settled = False
        batch = self._ahead.take(self._reader, self._control.window_size(), self._next_name)
        reservation = batch.reservation
        known = self._recognised(batch.entries)
        if known:
            reservation.commit(known)
            self._control.apply(recognised(self._route.account, len(known)))
        fresh = [entry for entry in batch.entries if entry.taken.id not in known]
        try:
            self._route.refuse(fresh)
        except BaseException:
            reservation.give_back()
            raise
        if fresh:
            self._window += 1
            self._finish(self._open(reservation, fresh), self._prepare_next)
        return len(batch.entries)

    def _recognised(self, entries: Sequence[Entry]) -> set[str]:
        """Return the ids of messages that were delivered before and came back."""
        found = set()
        for entry in entries:
            # without an id only the broker's mark distinguishes it from another message with the same body
            if self._written[entry.identity] > 0 and (entry.taken.is_redelivered or task_id(entry.taken.message)):
                self._written[entry.identity] -= 1
                found.add(entry.taken.id)
            elif entry.taken.may_run:
                # if the source still has the original, it comes as another copy
                self._written[entry.identity] += 1
        return found

    def _open(self, reservation: Reservation, entries: list[Entry]) -> Window:
        certain = [entry.identity for entry in entries if self._number_it(entry)]
        window = Window(self._route.account, self._window, reservation, entries)
        self._open_window = window
        self._control.apply(window.opened(self._number, certain))
        return window

    def _number_it(self, entry: Entry) -> bool:
        """Give a message its sequence number: the old one if it may have been sent before.

        Return whether no other message with its identity may have been sent.
        """
        numbers = self._maybe.get(entry.identity)
        if not numbers:
            self._number += 1
            entry.number, entry.maybe_twice = self._number, entry.taken.may_run
            return False
        entry.number, entry.maybe_twice = numbers.pop(0), True
        if numbers:
            return False
        del self._maybe[entry.identity]
        return True

    def _prepare_next(self, window: Window) -> None:
        size = self._control.size_ahead(len(window.entries))
        if size and self._reader is not None:
            self._ahead.prepare(self._reader, size, self._next_name)

    def _finish(self, window: Window, meanwhile: Callable[[Window], None] = lambda _: None) -> None:
        """Write a window, settle and commit it; what was not written when the move is stopped goes back."""
        try:
            with self._traced(window):
                self._writer.write(window, lambda: meanwhile(window))
        except MoveStopped:
            if not self._placement.is_certain and any(entry.maybe_twice for entry in window.pending):
                # the target may have it: as after a death, the next mover sends it with its number and the mark
                raise
            self._settle(window)
            window.reservation.give_back()
            self._control.count(window)
            raise
        self._settle(window)
        self._control.moved(window)

    def _traced(self, window: Window) -> AbstractContextManager[None]:
        """Return the span of a window: linked to the senders of its messages, whose traces go on where they run."""
        route, goals = self._route, {entry.goal for entry in window.entries} - {""}
        destination = Destination(route.system, goals.pop() if len(goals) == 1 else "")
        carriers = [entry.taken.message.headers for entry in window.entries]
        stated = {"repot.move": route.name, "repot.move.source_queue": route.queue}
        return sending_many("move", destination, carriers, stated)

    def _settle(self, window: Window) -> None:
        self._placement.finish(window, self._control.journal)
        self._open_window = None

    # -- what an earlier mover left

    def _recover(self) -> None:
        """Recover what the last mover, or this one, left when it was interrupted."""
        # the fencing token first: another mover may have taken over
        self._control.apply(nothing(self._route.account))
        self._control.check_target()
        record = self._journal.read()
        queue, way = self._route.account, self._journal.direction
        self._phases = [_DELAYED, _DUE]
        self._window, self._number = (int(record.get(f"{way}{name}:{queue}") or 0) for name in ("window", "sequence"))
        self._reader = self._queue_reader()
        open_now = self._journal.identities(queue, "open")
        for name in self._reader.left(self._reservation_prefix):
            if self._take_over(name, open_now):
                open_now = {}
        if open_now:
            self._control.apply(abandoned(queue, open_now, may_be_written=not self._placement.is_certain))
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
        entries = self._ahead.entries_of(reservation)
        for entry in entries:
            entry.number, entry.maybe_twice = numbers[entry.identity].pop(0), marks
        self._route.refuse(entries)
        window = self._open_window = Window(self._route.account, self._window, reservation, entries)
        if marks:
            self._control.apply(marked(window.queue, len(entries)))
        self._finish(window)

    def _wait(self) -> None:
        """Keep everything alive while the target makes the mover wait."""
        self._control.renew()
        self._keep_alive()

    def _keep_alive(self) -> None:
        self._control.apply(nothing(self._route.account))
        if self._open_window is not None:
            # without ids it renews the lease
            self._open_window.reservation.commit(())
        self._ahead.keep_alive()
        if self._reader is not None:
            self._reader.keep_alive()

    @property
    def _next_name(self) -> str:
        return self._reservation_name(self._window + 1)

    def _reservation_name(self, window: int) -> str:
        return f"{self._reservation_prefix}{window}.{self._control.journal.token}"

    @property
    def _reservation_prefix(self) -> str:
        return f"{self._journal.direction}move.{self._route.name}."


def _those_in(written: Counter[str], reservation: Reservation) -> list[str]:
    found = []
    for one in reservation.messages:
        identity = identity_of(one.message)
        if written[identity] > 0:
            written[identity] -= 1
            found.append(one.id)
    return found
