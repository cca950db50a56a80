"""What decides, between two windows, whether and how fast a move goes on."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from time import monotonic
from typing import TYPE_CHECKING

from repot.errors import MoveStopped, RepotError
from repot.logs import get_logger
from repot.masking import masked

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Event

    from repot.brokers.journal import Lines
    from repot.brokers.moving import QueueHold
    from repot.migrate.leases import LeasedJournal
    from repot.migrate.window import Window

log = get_logger(__name__)

_SLICE_S = 1.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
#: While a queue is empty and the move follows late producers.
_IDLE_S = 0.5


class Until(StrEnum):
    """When a move is over."""

    #: The queue is empty.
    EMPTY = "empty"
    #: Never: it moves what late producers send.
    FOLLOW = "follow"


class Request(StrEnum):
    """What an operator asked for."""

    RUN = "run"
    PAUSE = "pause"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a move; None is no limit.

    Attributes:
        window: messages that are moved together.
        jobs: processes that move different queues at the same time; one that follows late producers has one queue.
        rate: messages a second.
        limit: messages in all.
        deadline_s: seconds until the move ends.
        patience_s: for how long a broker may be away.
        max_depth: messages that may wait in the target queue; beyond, the move pauses.
        lease_s: how long the mover's leases live without a renewal.
    """

    window: int = 500
    jobs: int = 1
    rate: float | None = None
    limit: int | None = None
    deadline_s: float | None = None
    patience_s: float = 300
    max_depth: int | None = None
    lease_s: float = 30
    until: Until = Until.EMPTY

    def pace(self) -> str:
        """Return how fast and until when a move goes, for its journal: what was not stated is missing."""
        default = Limits()
        found = {name: getattr(self, name) for name in PACE if getattr(self, name) != getattr(default, name)}
        return json.dumps(found)


#: What a move that goes on keeps of its limits; `limit` and `deadline_s` were its end.
PACE = ("window", "jobs", "rate", "max_depth", "until")


@dataclass(slots=True)
class Spent:
    """What the queues of a move have used of its limits together."""

    moved_count: int = 0
    begun_at: float = field(default_factory=monotonic)


@dataclass(slots=True)
class Control:
    """Watches the limits, the operator's requests and the brokers' state, for one queue.

    `journal` is that of the move, `depth` counts the target queue, `check_target` looks whether it can take messages,
    `progress` is called after each window and at each change of what the move waits for, `alive` while it waits, and
    `let_go` when it is to hold nothing meanwhile.
    """

    limits: Limits
    spent: Spent
    stop: Event
    hold: QueueHold
    journal: LeasedJournal
    depth: Callable[[], int]
    #: Raises MoveRefused where a queue is missing.
    check_target: Callable[[], None]
    progress: Callable[[str], None]
    alive: Callable[[], None] = lambda: None
    let_go: Callable[[], None] = lambda: None
    #: Of this queue.
    moved_count: int = 0
    _requested: Request = Request.RUN
    _rate: float | None = None
    _pause_s: float = _FIRST_PAUSE_S
    _away_since: float | None = None
    _renewed_at: float = 0
    _alive_at: float = 0
    _depth_checked_at: float = 0

    @property
    def lease_s(self) -> float:
        """Return the duration of the mover's leases."""
        return self.limits.lease_s

    @property
    def follows(self) -> bool:
        """Return whether the move goes on with what comes later."""
        return self.limits.until is Until.FOLLOW

    def goes_on(self) -> bool:
        """Wait while the move is paused; return False at a limit.

        Raises:
            MoveStopped: an operator, a signal or the deadline ends it.
        """
        self.renew()
        while self._requested is Request.PAUSE or self._is_too_deep():
            self.progress("paused" if self._requested is Request.PAUSE else "the target queue is full enough")
            self.let_go()
            self._rest(_SLICE_S)
            self.answered()
        self.check_end()
        return self.limits.limit is None or self.spent.moved_count < self.limits.limit

    def is_over(self) -> bool:
        """Return whether an empty queue ends the move; if not, wait a moment."""
        if not self.follows:
            return True
        self.progress("following")
        self._rest(_IDLE_S)
        return False

    def window_size(self) -> int:
        """Return how many messages the next window may have."""
        return max(1, self._size(self.spent.moved_count))

    def size_ahead(self, open_count: int) -> int:
        """Return how many messages may be reserved while a window of so many is written; 0 for none."""
        if self._requested is not Request.RUN or self.stop.is_set():
            return 0
        return max(0, self._size(self.spent.moved_count + open_count))

    def _size(self, moved_count: int) -> int:
        size = self.limits.window
        if self.limits.limit is not None:
            size = min(size, self.limits.limit - moved_count)
        rate = self._rate or self.limits.rate
        # at most a second's messages together, so that the rate is even
        return min(size, max(1, int(rate))) if rate else size

    def moved(self, window: Window) -> None:
        """Count a window, and wait as long as the rate demands.

        Raises:
            MoveStopped: an operator, a signal or the deadline ends it.
        """
        self.count(window)
        self.answered()
        self.progress("moving")
        if rate := self._rate or self.limits.rate:
            self._rest(len(window.written) / rate)

    def count(self, window: Window) -> None:
        """Count what a window has moved."""
        self.moved_count += len(window.written)
        self.spent.moved_count += len(window.written)

    def answered(self) -> None:
        """Note that both brokers did what they had to: the patience with an outage begins again."""
        self._away_since, self._pause_s = None, _FIRST_PAUSE_S

    def apply(self, lines: Lines) -> None:
        """Apply a change to the journal, which renews the lease; take what an operator asked for.

        Raises:
            LeaseLost: another mover has the lease.
            BrokerUnreachable: the journal's broker did not answer; the change happened, or not.
        """
        record = self.journal.apply(lines)
        self._requested = Request(record.get("wanted") or Request.RUN)
        self._rate = float(record["rate"]) if record.get("rate") else None

    def target_refuses(self, reason: str) -> None:
        """Wait a moment while the target takes nothing (an alarm, a full queue, no memory).

        Raises:
            MoveStopped: an operator, a signal or the deadline ends it.
        """
        self.check_end()
        self.progress(f"the target refuses: {reason}")
        self._rest(self._next_pause())

    def disturbed(self, error: RepotError) -> None:
        """Wait a moment after a broker failed.

        Raises:
            MoveStopped: the broker was away for too long, or the move is to end.
        """
        now = monotonic()
        self._away_since = self._away_since or now
        log.warning("the move is interrupted: %s", masked(error.message), extra={"action": "move_interrupted"})
        self.progress(f"interrupted: {masked(error.message)}")
        if now - self._away_since > self.limits.patience_s:
            message = f"a broker was away for {self.limits.patience_s:g} s: {error.message}"
            raise MoveStopped(message, hint="`repot move resume` goes on once it is back.") from error
        self.check_end()
        self._sleep(self._next_pause())

    def renew(self) -> None:
        """Renew the hold of the source queue, if a third of its lease has passed.

        Raises:
            LeaseLost: another mover has it.
            BrokerUnreachable: the source did not answer.
        """
        if monotonic() - self._renewed_at > self.limits.lease_s / 3:
            self.hold.renew()
            self._renewed_at = monotonic()

    def _is_too_deep(self) -> bool:
        if self.limits.max_depth is None or monotonic() - self._depth_checked_at < _SLICE_S:
            return False
        too_deep = self.depth() >= self.limits.max_depth
        if not too_deep:
            self._depth_checked_at = monotonic()
        return too_deep

    def _rest(self, seconds: float) -> None:
        """Wait, and keep the leases alive."""
        until = monotonic() + seconds
        while (left := until - monotonic()) > 0 and not self.stop.is_set():
            self.stop.wait(min(left, _SLICE_S))
            self.renew()
            if monotonic() - self._alive_at > _SLICE_S / 2:
                self.alive()
                self._alive_at = monotonic()
        self.check_end()

    def _sleep(self, seconds: float) -> None:
        self.stop.wait(seconds)
        self.check_end()

    def _next_pause(self) -> float:
        now, self._pause_s = self._pause_s, min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return now

    def check_end(self) -> None:
        """Check that the move is to go on.

        Raises:
            MoveStopped: an operator, a signal or the deadline ends it.
        """
        if reason := self.reason_to_end():
            raise MoveStopped(reason, hint="`repot move resume` goes on from here.")

    def reason_to_end(self) -> str:
        """Return why the move ends before its time; empty if it goes on."""
        return reason_to_end(self.limits, self.spent, self.stop, self._requested)


def reason_to_end(limits: Limits, spent: Spent, stop: Event, requested: str) -> str:
    """Return why a move ends before its time; empty if it goes on."""
    if stop.is_set():
        return "the move was interrupted; nothing is lost"
    if requested == Request.STOP:
        return "the move was stopped by an operator"
    if limits.deadline_s is not None and monotonic() - spent.begun_at > limits.deadline_s:
        return f"the deadline of {limits.deadline_s:g} s is over"
    return ""
