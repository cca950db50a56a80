"""Sending letters back to work, and throwing them away: a round through the queues, one decision each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic, time
from typing import TYPE_CHECKING

from repot.brokers.sweep import Discard, Forward, Keep
from repot.deadletter.letter import to_replay
from repot.errors import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from threading import Event

    from repot.brokers.sweep import Decision
    from repot.deadletter.letter import Letter
    from repot.deadletter.search import Box, Wanted

EXPIRED = "the task has expired, and a worker would drop it without a word (--forget-expiry)"
NOT_A_TASK = "no worker could read it (name it by its id, or with --reason)"
NO_QUEUE = "nobody knows which queue it came from (--to)"


@dataclass(frozen=True, slots=True)
class Replay:
    """Send a letter back to the queue it came from, or to `to`."""

    to: str = ""
    forget_expiry: bool = False
    #: Whether somebody has named these very letters: those that no worker can read, too.
    by_name: bool = False

    def decide(self, letter: Letter) -> Decision | str:
        """What to do with a letter; a text says why it is left where it is."""
        target = self.to or letter.death.queue
        if not target:
            return NO_QUEUE
        if not letter.is_task and not self.by_name:
            return NOT_A_TASK
        expires_at = letter.expires_at
        if expires_at and expires_at <= datetime.now(UTC) and not self.forget_expiry:
            return EXPIRED
        return Forward(to_replay(letter, forget_expiry=self.forget_expiry), target)


def discard(_letter: Letter) -> Decision | str:
    """Throw any letter away."""
    return Discard()


@dataclass(slots=True)
class Round:
    """What a round did, or would do; `left` are letters that were wanted and stay, by the reason.

    `missing` are the queues that a broker says it does not have.
    """

    matched: int = 0
    acted: int = 0
    gone: int = 0
    left: Counter[str] = field(default_factory=Counter)
    missing: list[Box] = field(default_factory=list)


@dataclass(slots=True)
class Pace:
    """So many letters a second at most; as fast as possible without a rate."""

    per_second: float | None
    stop: Event
    _next: float = 0

    def keep(self) -> None:
        """Wait until the next one may go, or somebody asks to stop."""
        if self.per_second is None:
            return
        self.stop.wait(max(self._next - monotonic(), 0))
        self._next = max(self._next, monotonic()) + 1 / self.per_second


def go_round(
    boxes: Iterable[Box],
    wanted: Wanted,
    decide: Callable[[Letter], Decision | str],
    *,
    execute: bool,
    limit: int | None,
    pace: Pace,
    saw: Callable[[Letter, Round], None],
    into: Round,
) -> None:
    """Decide about every wanted letter, up to `limit` of them; act on it only with `execute`.

    `into` counts as it goes, so that it is right also when this raises.

    Raises:
        Unroutable: there is no queue to send a letter to; it and all others are where they were.
        Interrupted: somebody asked to stop; what is not done stays.
    """
    now = time()

    def judge(letter: Letter) -> Decision:
        if pace.stop.is_set() or (limit is not None and into.acted >= limit) or not wanted.matches(letter, now):
            return Keep()
        into.matched += 1
        decision = decide(letter)
        if isinstance(decision, str):
            into.left[decision] += 1
            return Keep()
        if execute:
            pace.keep()
            if pace.stop.is_set():
                return Keep()
        into.acted += 1
        saw(letter, into)
        return decision if execute else Keep()

    for box in boxes:
        swept = box.sweep(judge)
        into.gone += swept.gone
        into.missing += [box] if swept.missing else []
    if pace.stop.is_set():
        message = "interrupted; every letter that was not reached is where it was"
        raise Interrupted(message)
