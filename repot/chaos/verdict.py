"""What became of a task, decided from what was sent, what the workers' journal says and what is left.

In the manner of Jepsen's total-queue checker: what goes in must come out, once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from repot.worker.journal import CLAIMED, DELIVERED, EFFECT, ENDED, STARTED, Happening

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Word(StrEnum):
    """The verdict on one task id."""

    #: Delivered once, completed, one effect.
    OK = "ok"
    #: Delivered more than once, one effect.
    REDELIVERED = "redelivered"
    #: Its sender was not told that the broker had it, and yet it was completed, with one effect.
    RECOVERED = "recovered"
    #: Its sender was not told that the broker had it, by an error or by no answer, and it never ran.
    REFUSED = "refused"
    #: Kept as a dead letter for a person to decide: not completed, but not gone either.
    SET_ASIDE = "set aside"
    #: Still at the broker when the deadline came.
    LEFT = "left"
    #: Its effect happened more than once.
    DUPLICATED = "duplicated"
    #: Accepted by the broker, never completed, and nowhere to be found.
    LOST = "lost"
    #: It ran, though nobody sent it.
    UNEXPECTED = "unexpected"

    @property
    def is_harmless(self) -> bool:
        """Whether the task was completed with one effect."""
        return self in (Word.OK, Word.REDELIVERED, Word.RECOVERED)

    @property
    def is_bad(self) -> bool:
        """Whether something happened that nobody could want or repair."""
        return self in (Word.DUPLICATED, Word.LOST, Word.UNEXPECTED, Word.LEFT)


class Sending(StrEnum):
    """What its sender was told of a message."""

    ACCEPTED = "accepted"
    #: An error, or nothing for long: the broker may have it or not.
    UNKNOWN = "unknown"
    #: Nobody of this experiment sent it.
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a task by a process of a worker; `ended` is None if no end was seen."""

    worker: str
    pid: int
    started: float
    ended: float | None
    state: str
    #: Whether a guard let it run, under a claim.
    claimed: bool = False


@dataclass(frozen=True, slots=True)
class Delivery:
    """One hand-over of a message to a worker, and whether the broker marked it as repeated."""

    worker: str
    at: float
    redelivered: bool
    tag: str = ""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a task did to the world, and where."""

    worker: str
    at: float


@dataclass(frozen=True, slots=True)
class Story:
    """All that the journal says of one task, in the order of time. Instants are seconds of one clock."""

    task: str
    deliveries: tuple[Delivery, ...]
    runs: tuple[Run, ...]
    effects: tuple[Effect, ...]

    @property
    def completed(self) -> bool:
        """Whether some run ended well."""
        return any(run.state == "SUCCESS" for run in self.runs)

    @property
    def goes_on(self) -> bool:
        """Whether some run has not ended."""
        return any(run.ended is None for run in self.runs)

    @property
    def overlapped(self) -> bool:
        """Whether a run began before an earlier one had ended."""
        ends = [run.ended for run in self.runs[:-1]]
        return any(end is None or later.started < end for end, later in zip(ends, self.runs[1:], strict=True))

    @property
    def unmarked(self) -> bool:
        """Whether a repeated delivery came without the broker's mark."""
        return any(not delivery.redelivered for delivery in self.deliveries[1:])

    def since(self, instant: float) -> Story:
        """The same, with instants counted from `instant`."""
        return Story(
            self.task,
            tuple(replace(found, at=found.at - instant) for found in self.deliveries),
            tuple(
                replace(run, started=run.started - instant, ended=None if run.ended is None else run.ended - instant)
                for run in self.runs
            ),
            tuple(replace(effect, at=effect.at - instant) for effect in self.effects),
        )


def story(task: str, happenings: Iterable[Happening], died: Mapping[int, float] | None = None) -> Story:
    """Pick one task's deliveries, runs and effects out of the journal.

    `died` says when a process was found dead, by its id: its last run ended then.
    """
    mine = [happening for happening in happenings if happening.task == task]
    return Story(
        task,
        deliveries=tuple(
            Delivery(found.worker, found.at, bool(found.details["redelivered"]), str(found.details.get("tag", "")))
            for found in mine
            if found.what == DELIVERED
        ),
        runs=tuple(_runs(mine, died or {})),
        effects=tuple(Effect(found.worker, found.at) for found in mine if found.what == EFFECT),
    )


def judge(told: Story, *, sending: Sending, left: bool, set_aside: bool, effects: int | None = None) -> Word:
    """The verdict on a task that no run of is going on any more.

    `left` is whether the broker may still hold it, `set_aside` whether a dead letter
    of it is kept, `effects` how often its effect happened if somebody counted better
    than the journal.
    """
    happened = len(told.effects) if effects is None else effects
    sent = sending is Sending.ACCEPTED
    if sending is Sending.NEVER:
        return Word.UNEXPECTED
    if happened > 1:
        return Word.DUPLICATED
    if told.completed and happened:
        again = Word.REDELIVERED if len(told.deliveries) > 1 else Word.OK
        return again if sent else Word.RECOVERED
    if set_aside or left:
        return Word.SET_ASIDE if set_aside else Word.LEFT
    return Word.LOST if sent or told.deliveries else Word.REFUSED


def _runs(mine: Sequence[Happening], died: Mapping[int, float]) -> Iterable[Run]:
    """Pair each start with the end in the same process: a process runs one task at a time."""
    for number, begun in enumerate(mine):
        if begun.what != STARTED:
            continue
        later = [one for one in mine[number + 1 :] if one.pid == begun.pid]
        end = next((one for one in later if one.what in (STARTED, ENDED)), None)
        within = later if end is None else later[: later.index(end)]
        claimed = any(one.what == CLAIMED for one in within)
        if end is not None and end.what == ENDED:
            yield Run(begun.worker, begun.pid, begun.at, end.at, str(end.details["state"]), claimed)
        else:
            state = "killed" if begun.pid in died else ""
            yield Run(begun.worker, begun.pid, begun.at, died.get(begun.pid), state, claimed)
