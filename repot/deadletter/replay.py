"""Replay or discard dead letters: browse the queues, and decide about each one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic, time
from typing import TYPE_CHECKING

from repot.brokers.browse import Discard, Forward, Keep
from repot.deadletter.dead_letter import make_replay
from repot.deadletter.reason import Reason
from repot.errors import Interrupted, RepotError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from threading import Event

    from repot.brokers.browse import Decision
    from repot.deadletter.dead_letter import DeadLetter
    from repot.deadletter.query import DeadLetterQuery, DlqHandle

EXPIRED = "the task has expired, and a worker would drop it silently (--forget-expiry)"
NOT_A_TASK = "no worker could read it (select it by its id or with --reason)"
HAS_RUN = "the task has run to its end, and would have its effect again (select it by its id or with --reason)"
MAY_HAVE_RUN = (
    "an earlier run may have had its effect: where it has, `repot leases release` records that; "
    "where not, select it by its id or with --reason"
)
NO_QUEUE = "the queue it came from is unknown (--to)"

#: Why a dead letter is not replayed with others, by its reason.
_HAVE_RUN: dict[str, str] = {Reason.RESULT_NOT_STORED: HAS_RUN, Reason.UNKNOWN_OUTCOME: MAY_HAVE_RUN}


@dataclass(frozen=True, slots=True)
class Replay:
    """Send a dead letter back to the queue it came from, or to `to`."""

    to: str = ""
    forget_expiry: bool = False
    #: Whether the dead letters were selected by id or reason: then those that no worker could read, and those that have
    #: run or may have, are replayed as well.
    selected: bool = False
    #: Whether they were selected by id: then an operator decided about each of them.
    by_id: bool = False

    def decide(self, dead_letter: DeadLetter) -> Decision | str:
        """Return what to do with a dead letter; a text is the reason to leave it in its queue."""
        target = self.to or dead_letter.death.queue
        if not target:
            return NO_QUEUE
        if not dead_letter.is_task and not self.selected:
            return NOT_A_TASK
        if (why := _HAVE_RUN.get(dead_letter.death.reason)) and not self.selected:
            return why
        expires_at = dead_letter.expires_at
        if expires_at and expires_at <= datetime.now(UTC) and not self.forget_expiry:
            return EXPIRED
        # what was killed or failed may have had its effect as well: its guard knows
        decided = self.by_id or dead_letter.death.reason == Reason.UNKNOWN_OUTCOME
        return Forward(make_replay(dead_letter, forget_expiry=self.forget_expiry, decided=decided), target)


def discard(_dead_letter: DeadLetter) -> Decision | str:
    """Discard any dead letter."""
    return Discard()


@dataclass(slots=True)
class ReplayReport:
    """What a replay or discard did, or would do.

    `skipped` counts selected dead letters that stay in their queue, by reason; `missing` are queues that do not exist.
    """

    matched: int = 0
    acted: int = 0
    gone: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    missing: list[DlqHandle] = field(default_factory=list)


@dataclass(slots=True)
class RateLimit:
    """At most `per_second` dead letters per second; no limit if None."""

    per_second: float | None
    stop: Event
    _next_at: float = 0

    def wait(self) -> bool:
        """Wait until the next one is allowed; return False if `stop` is set."""
        if self.per_second is not None:
            self.stop.wait(max(self._next_at - monotonic(), 0))
            self._next_at = max(self._next_at, monotonic()) + 1 / self.per_second
        return not self.stop.is_set()


def apply_decisions(
    dlqs: Iterable[DlqHandle],
    query: DeadLetterQuery,
    decide: Callable[[DeadLetter], Decision | str],
    *,
    execute: bool,
    limit: int | None,
    rate: RateLimit,
    on_decision: Callable[[DeadLetter, ReplayReport], None],
    report: ReplayReport,
) -> None:
    """Decide about every selected dead letter, at most `limit`; act only with `execute`.

    `report` is updated continuously, so it is correct also when this raises. What failed is not counted.

    Raises:
        Unroutable: there is no queue to send a dead letter to; it and the following ones stay.
        Interrupted: `rate.stop` was set; the remaining dead letters stay.
    """
    now, is_acting = time(), False

    def choose(dead_letter: DeadLetter) -> Decision:
        nonlocal is_acting
        is_acting = False
        if rate.stop.is_set() or (limit is not None and report.acted >= limit) or not query.matches(dead_letter, now):
            return Keep()
        report.matched += 1
        decision = decide(dead_letter)
        if isinstance(decision, str):
            report.skipped[decision] += 1
            return Keep()
        if execute and not rate.wait():
            return Keep()
        report.acted += 1
        on_decision(dead_letter, report)
        is_acting = execute
        return decision if execute else Keep()

    for dlq in dlqs:
        is_acting = False
        try:
            browsed = dlq.browse(choose)
        except RepotError:
            # the broker acts on a decision before it asks for the next one: the last one is not known to be done
            report.acted -= is_acting
            raise
        report.gone += browsed.gone
        report.missing += [dlq] if browsed.missing else []
    if rate.stop.is_set():
        message = "interrupted; the remaining dead letters stay in their queues"
        raise Interrupted(message)
