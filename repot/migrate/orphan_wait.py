"""Give back the orphans of a move, move them, and wait for those that cannot be given back yet.

A claim is left until its lease has expired, and a young delivery until it has its age; a worker that may be alive and
did not answer makes all of them wait. What becomes ready while the queues are moved is looked at once more, however
long that takes. The wait ends with what was known when it began: the claim of a living worker is renewed again and
again, and is not waited for.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from time import monotonic, time
from typing import TYPE_CHECKING, Any, TypeVar

from repot.brokers.in_hand import KeepsDeliveries
from repot.errors import BrokerUnreachable, FactUnknown, HoldersUnknown, MoveStopped
from repot.logs import get_logger
from repot.masking import masked
from repot.migrate.control import Request, reason_to_end
from repot.migrate.leases import LeasedJournal
from repot.migrate.orphans import Finding, Selection, ready_at, selected, take_back
from repot.migrate.status import audit_line
from repot.migrate.window import nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from repot.brokers import Broker
    from repot.brokers.journal import Journal
    from repot.migrate.control import Limits
    from repot.migrate.run import Run

log = get_logger(__name__)

T = TypeVar("T")

#: The lease of the journal is renewed in between, and an operator's request is read.
_SLICE_S = 1.0
#: Between two attempts while a worker may be alive that does not answer.
_AGAIN_S = 10.0
_RESUME = "`repot move resume --orphans` goes on from here."
#: A claim ends by the clock of its broker.
_SLACK_S = 2.0


@dataclass(slots=True)
class OrphanMove:
    """Gives back and moves the orphans of a move; `carry` moves what is in the queues.

    Attributes:
        waits: go on until what was in hand can be given back.
    """

    source: Broker
    journal: Journal
    selection: Selection
    limits: Limits
    run: Run
    carry: Callable[[Run], None]
    waits: bool = False
    _until: float | None = None

    def move(self) -> None:
        """Give back, move, and wait, until nothing is left that could be given back in time.

        Raises:
            HoldersUnknown: a worker may be alive that did not say what it holds, to the end of the wait.
            MoveStopped: an operator, a signal or the deadline ends it.
            LeaseLost: another mover has taken over.
        """
        while True:
            looked_at = time()
            unknown = self._patiently(self._take_back)
            self._patiently(partial(self.carry, self.run))
            if not self.waits:
                break
            again_at = self._patiently(partial(self._again_at, looked_at, may_live=unknown is not None))
            if again_at is None:
                break
            self._patiently(partial(self._rest, again_at))
        if unknown is not None:
            raise unknown

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Return what `ask` returns; while a broker does not answer, ask again, as long as its absence is allowed.

        Raises:
            BrokerUnreachable: it was away for longer, or the move does not wait.
            MoveStopped: a signal or the deadline ends it.
        """
        away_since: float | None = None
        while True:
            try:
                return ask()
            except BrokerUnreachable as error:
                if away_since is None:
                    away_since, text = monotonic(), masked(error.message)
                    log.warning("the wait is interrupted: %s", text, extra={"action": "move_interrupted"})
                if not self.waits or monotonic() - away_since > self.limits.patience_s:
                    raise
            self.run.stop.wait(_SLICE_S)
            # what an operator asks for is in the journal, which may be away
            if reason := reason_to_end(self.limits, self.run.spent, self.run.stop, ""):
                raise MoveStopped(reason, hint=_RESUME)

    def _take_back(self) -> HoldersUnknown | None:
        """Give back what can be; return why nothing could."""
        try:
            text = take_back(self.source, self.selection)
        except HoldersUnknown as error:
            if not self.waits:
                raise
            self.journal.ask({"in_hand": error.message}, audit_line(error.message))
            return error
        self.journal.ask({"in_hand": text}, audit_line(text))
        return None

    def _again_at(self, looked_at: float, *, may_live: bool) -> float | None:
        """Return when to look again; None if no time is known, or the last look was after those known at first."""
        held = selected(self.source, self.selection)
        ready = ((one, ready_at(one, self.selection)) for one in held)
        times = [at for one, at in ready if at is not None and (one.reason or at > looked_at)]
        if may_live:
            times += [one.delivery.again_at for one in held if one.delivery.again_at is not None]
        if self._until is None:
            self._until = max(times, default=0) + _SLACK_S
        coming = [at for at in times if at <= self._until]
        if not coming or looked_at > self._until:
            return None
        return min(*coming, time() + _AGAIN_S) if may_live else min(coming)

    def _rest(self, until_at: float) -> None:
        queue = self.selection.queues[0] if self.selection.queues else ""
        count = len(selected(self.source, self.selection))
        what = "1 message" if count == 1 else f"{count} messages"
        doing = f"waiting for {what} in workers' hands, the next ones until {_clock(until_at)}"
        self.run.progress(queue, doing, self.run.spent.moved_count)
        leased = LeasedJournal(self.journal, self.run.token, self.limits.lease_s)
        while True:
            found = leased.apply(nothing(queue))
            if reason := reason_to_end(self.limits, self.run.spent, self.run.stop, found.get("wanted", "")):
                raise MoveStopped(reason, hint=_RESUME)
            if self.run.stop.wait(_SLICE_S):
                continue
            if time() >= until_at and found.get("wanted") != Request.PAUSE:
                return


def left_in_hand(broker: object, selection: Selection, name: str) -> str:
    """Return a sentence about what workers of a source still hold, and when to come again; empty for nothing.

    It is empty also for a broker that gives back by itself. That a user may not ask is said as well.
    """
    if not isinstance(broker, KeepsDeliveries):
        return ""
    keeper: Any = broker
    try:
        held: Sequence[Finding] = selected(keeper, selection)
    except (BrokerUnreachable, FactUnknown) as error:
        return f"what workers of the source still hold is unknown: {error.message}"
    if not held:
        return ""
    what = "1 message is" if len(held) == 1 else f"{len(held)} messages are"
    text = f"{what} still in workers' hands on the source"
    times = [at for one in held if one.reason and (at := ready_at(one, selection)) is not None]
    if not times:
        return f"{text}, and may be running; `repot inflight list` shows them"
    wait_s = max(0, min(times) - time())
    again = f"`repot move resume {name} --orphans --execute` then, or with --wait now"
    return f"{text}; the first can be given back in {wait_s:.0f} s (at {_clock(min(times))}): {again}"


def _clock(at: float) -> str:
    with suppress(OverflowError, ValueError):
        return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S UTC")
    return "an unknown time"
