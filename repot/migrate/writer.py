"""Write a window to the target: send, send again what was refused, quarantine what the target will never take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.brokers.headers import MoveStamp, origin
from repot.brokers.publishing import PublishOutcome
from repot.deadletter.reason import Reason
from repot.errors import BrokerUnreachable, MoveStopped
from repot.migrate.placement import Sending
from repot.migrate.route import KEEP, NOT_KEPT
from repot.migrate.translate import Quarantine, stamped
from repot.migrate.window import marked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from repot.brokers.moving import Outgoing
    from repot.brokers.publishing import Receipt
    from repot.migrate.control import Control
    from repot.migrate.placement import Placement
    from repot.migrate.route import Route
    from repot.migrate.window import Entry, Window


class WindowWriter:
    """Writes the windows of one queue."""

    def __init__(self, route: Route, placement: Placement, control: Control, wait: Callable[[], None]) -> None:
        """Write by `placement`; `wait` is called while the target is busy."""
        self._route, self._placement, self._control, self._wait = route, placement, control, wait

    def write(self, window: Window, meanwhile: Callable[[], None]) -> None:
        """Send everything; `meanwhile` is called while the target has all and has not confirmed it yet.

        Raises:
            MoveStopped: the target takes nothing, or the operator asked to stop; `window.written` says what it has.
            BrokerUnreachable: a broker did not answer.
        """
        while pending := window.pending:
            self._write_to_source(window, [one for one in pending if _is_for_source(one)])
            if pending := window.pending:
                self._send(window, pending, meanwhile)

    def _send(self, window: Window, pending: Sequence[Entry], meanwhile: Callable[[], None]) -> None:
        outgoing = [self._outgoing(entry) for entry in pending]
        sending = Sending(pending, outgoing, self._control.journal, self._wait_or_end, meanwhile)
        receipts = self._placement.write(window, sending)
        refusals = []
        for entry, receipt in zip(pending, receipts, strict=True):
            if receipt.is_final:
                translation, message = self._route.translation, entry.taken.message
                reason = Reason.TOO_LARGE if receipt.is_too_large else Reason.UNSUPPORTED
                entry.translated = translation.quarantine(message, reason, receipt.reason)
            elif not receipt.is_confirmed:
                refusals.append(receipt.reason)
        again = self._mark(_unknown(pending, receipts))
        if refusals:
            self._control.target_refuses(refusals[0])
        if again:
            self._control.apply(marked(window.queue, again))
            self._control.check_end()
        if not all(entry.has_place for entry in pending):
            why = f"the target will never take a message, and {NOT_KEPT}"
            raise MoveStopped(why, hint=KEEP)

    def _wait_or_end(self) -> None:
        """Keep everything alive, or let the broker be asked no longer: what it has of the messages is unknown then."""
        self._wait()
        if reason := self._control.reason_to_end():
            raise TimeoutError(reason)
        self._control.progress("waiting for the target")

    def _mark(self, entries: Sequence[Entry]) -> int:
        """Mark messages that are to be sent again although the first copy may have arrived; return how many are new."""
        if entries and self._placement.is_certain:
            message = "the target did not answer; its journal says what it has"
            raise BrokerUnreachable(message)
        again = [entry for entry in entries if not entry.maybe_twice]
        for entry in again:
            entry.maybe_twice = True
        return len(again)

    def _write_to_source(self, window: Window, entries: Sequence[Entry]) -> None:
        """Quarantine on the source what the target cannot hold."""
        if not entries:
            return
        outgoing = [self._outgoing(entry) for entry in entries]
        # its workers need not have declared it
        self._route.source.prepare({one.queue for one in outgoing})
        receipts = self._route.source.deliver(outgoing, self._wait_or_end)
        if refused := next((one for one in receipts if not one.is_confirmed), None):
            self._control.check_end()
            message = f"what the target cannot hold cannot be quarantined on the source either: {refused.reason}"
            raise MoveStopped(message, hint="Make room for the dead-letter queue on the source, and resume.")
        window.written += entries

    def _outgoing(self, entry: Entry) -> Outgoing:
        """Return what is sent for a message, with the headers of the move."""
        found, route = entry.translated, self._route
        outgoing = found.dead_letter if isinstance(found, Quarantine) else found
        stamp = MoveStamp(route.name, entry.number, route.origin and origin(route.origin, outgoing.queue))
        return stamped(outgoing, stamp, maybe_twice=entry.maybe_twice)


def _unknown(entries: Sequence[Entry], receipts: Sequence[Receipt]) -> list[Entry]:
    return [one for one, receipt in zip(entries, receipts, strict=True) if receipt.outcome is PublishOutcome.UNKNOWN]


def _is_for_source(entry: Entry) -> bool:
    return isinstance(entry.translated, Quarantine) and entry.translated.at_source
