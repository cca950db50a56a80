"""The verdict on a task, from how it was sent, its history in the journal, and what is left at the broker.

Modelled on Jepsen's total-queue checker: each message that is accepted must be processed, once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from repot.chaos.instruments.journal import (
    CLAIMED,
    DELIVERED,
    EFFECT,
    ENDED,
    FAILED,
    PREVENTED,
    REACHED,
    RELEASED,
    STARTED,
    JournalEvent,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Verdict(StrEnum):
    """The verdict on one task id."""

    #: Delivered once, completed, its effects as expected.
    OK = "ok"
    #: Delivered more than once, its effects as expected.
    REDELIVERED = "redelivered"
    #: The broker did not confirm it to its sender, but it was completed, its effects as expected.
    RECOVERED = "recovered"
    #: The broker did not confirm it to its sender, by an error or no reply, and it never ran.
    REFUSED = "refused"
    #: Not completed, but kept as a dead letter or a record for a person to decide.
    PARKED = "parked"
    #: Not due before the end of the experiment; the broker or a worker holds it.
    POSTPONED = "postponed"
    #: Still at the broker at the deadline.
    LEFT = "left"
    #: An effect happened more often than expected.
    DUPLICATED = "duplicated"
    #: Its last run raised; Celery does not run it again.
    FAILED = "failed"
    #: Accepted by the broker, never completed, and no longer on the broker.
    LOST = "lost"
    #: The rest of a chain, or the callback of a chord, was not sent.
    NEVER_SENT = "never sent"
    #: It ran, but the experiment did not send it.
    UNEXPECTED = "unexpected"

    @property
    def is_harmless(self) -> bool:
        """Return whether the task was completed with its effects as expected."""
        return self in (Verdict.OK, Verdict.REDELIVERED, Verdict.RECOVERED)

    @property
    def is_bad(self) -> bool:
        """Return whether work was lost, failed or duplicated, ran unasked, or is stuck."""
        return self in (
            Verdict.DUPLICATED, Verdict.LOST, Verdict.NEVER_SENT, Verdict.FAILED, Verdict.UNEXPECTED, Verdict.LEFT,
        )  # fmt: skip


class Sending(StrEnum):
    """The broker's reply to the sender of a message."""

    ACCEPTED = "accepted"
    #: An error, or no reply in time: the broker may have accepted the message.
    UNKNOWN = "unknown"
    #: The experiment did not send it.
    NEVER = "never"
    #: The application was to send it, and did not.
    DUE = "due"


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a task by a process of a worker.

    Attributes:
        ended: None if no end was seen.
        claimed: whether a guard claimed a lease for it.
    """

    worker: str
    pid: int
    started: float
    ended: float | None
    state: str
    claimed: bool = False


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of a message to a worker, and the broker's redelivered flag."""

    worker: str
    at: float
    redelivered: bool
    tag: str = ""


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect of a task, and the worker where it happened."""

    worker: str
    at: float


@dataclass(frozen=True, slots=True)
class EffectCount:
    """How often the effect of one name happened, and how often it was to; without a probe it has no name."""

    name: str
    happened: int
    expected: int = 1

    def __str__(self) -> str:
        """Return it as text: `1`, `payments 2 of 1`."""
        number = str(self.happened) if self.expected == 1 and not self.name else f"{self.happened} of {self.expected}"
        return f"{self.name} {number}".strip()


@dataclass(frozen=True, slots=True)
class TaskHistory:
    """The events of one task, ordered by time. Instants are seconds of one clock.

    Attributes:
        prevented: a guard found the effect done, perhaps under another id.
    """

    task: str
    deliveries: tuple[Delivery, ...]
    runs: tuple[Run, ...]
    effects: tuple[Effect, ...]
    prevented: bool = False

    @property
    def completed(self) -> bool:
        """Return whether a run has succeeded."""
        return any(run.state == "SUCCESS" for run in self.runs)

    @property
    def is_open(self) -> bool:
        """Return whether a run has not ended."""
        return any(run.ended is None for run in self.runs)

    @property
    def overlapped(self) -> bool:
        """Return whether a run started before an earlier one had ended."""
        ends = [run.ended for run in self.runs[:-1]]
        return any(end is None or later.started < end for end, later in zip(ends, self.runs[1:], strict=True))

    @property
    def unmarked(self) -> bool:
        """Return whether a redelivery came without the broker's redelivered flag."""
        return any(not delivery.redelivered for delivery in self.deliveries[1:])

    def since(self, instant: float) -> TaskHistory:
        """Return the same history with instants relative to `instant`."""
        return TaskHistory(
            self.task,
            tuple(replace(found, at=found.at - instant) for found in self.deliveries),
            tuple(
                replace(run, started=run.started - instant, ended=None if run.ended is None else run.ended - instant)
                for run in self.runs
            ),
            tuple(replace(effect, at=effect.at - instant) for effect in self.effects),
            self.prevented,
        )


def task_history(task: str, events: Iterable[JournalEvent], died: Mapping[int, float] | None = None) -> TaskHistory:
    """Return the history of one task from the journal's events.

    `died` is the time at which a process was found dead, by its id: its last run ended then.
    """
    mine = [event for event in events if event.task == task]
    return TaskHistory(
        task,
        deliveries=tuple(
            Delivery(found.worker, found.at, bool(found.details["redelivered"]), str(found.details.get("tag", "")))
            for found in mine
            if found.kind == DELIVERED
        ),
        runs=tuple(_runs(mine, died or {})),
        effects=tuple(Effect(found.worker, found.at) for found in mine if found.kind == EFFECT),
        prevented=any(found.kind == PREVENTED for found in mine),
    )


def run_time(history: TaskHistory, events: Sequence[JournalEvent], now: float) -> float:
    """Return how long the longest run of a task took, or has taken so far, without the time at failpoints."""
    held = [one for one in events if one.task == history.task and one.kind in (REACHED, RELEASED)]

    def at_failpoints(run: Run, ended: float) -> float:
        mine = [one for one in held if one.pid == run.pid and run.started <= one.at <= ended]
        instants = [*(one.at for one in mine), ended]
        return sum(instants[number + 1] - one.at for number, one in enumerate(mine) if one.kind == REACHED)

    ends = [(run, now if run.ended is None else run.ended) for run in history.runs]
    return max((ended - run.started - at_failpoints(run, ended) for run, ended in ends), default=0)


def judge(
    history: TaskHistory,
    *,
    sending: Sending,
    left: bool,
    parked: bool,
    postponed: bool = False,
    effects: Sequence[EffectCount] = (),
    noted: bool = False,
) -> Verdict:
    """Return the verdict on a task without an open run.

    `left` is whether the broker may still hold it, `parked` whether a guard parked it or it has a dead letter,
    `postponed` whether it, or what it has sent, is due only after the end, `effects` what a probe counted; without
    one, each run whose function returned is an effect, and one is expected. An effect that a guard found done counts
    as one. `noted` is whether the application has noted them for this id: then no run needs to have come to its end.
    """
    effects = effects or [EffectCount("", len(history.effects) or int(history.prevented))]
    sent = sending is Sending.ACCEPTED
    if sending in (Sending.NEVER, Sending.DUE):
        return Verdict.UNEXPECTED if sending is Sending.NEVER else Verdict.NEVER_SENT
    if any(one.happened > one.expected for one in effects):
        return Verdict.DUPLICATED
    if (history.completed or noted) and all(one.happened == one.expected for one in effects):
        again = Verdict.REDELIVERED if len(history.deliveries) > 1 else Verdict.OK
        return again if sent else Verdict.RECOVERED
    for holds, verdict in ((parked, Verdict.PARKED), (left, Verdict.LEFT), (postponed, Verdict.POSTPONED)):
        if holds:
            return verdict
    return _without_an_end(history, sent=sent)


def _without_an_end(history: TaskHistory, *, sent: bool) -> Verdict:
    if history.runs and history.runs[-1].state == "FAILURE":
        return Verdict.FAILED
    return Verdict.LOST if sent or history.deliveries else Verdict.REFUSED


def _runs(mine: Sequence[JournalEvent], died: Mapping[int, float]) -> Iterable[Run]:
    """Pair each start with the end in the same process and thread: it runs one task at a time."""
    for number, begun in enumerate(mine):
        if begun.kind != STARTED:
            continue
        later = [one for one in mine[number + 1 :] if _place(one) == _place(begun)]
        end = next((one for one in later if one.kind in (STARTED, ENDED)), None)
        within = later if end is None else later[: later.index(end)]
        claimed = any(one.kind == CLAIMED for one in within)
        if end is not None and end.kind == ENDED:
            after = later[later.index(end) + 1 :]
            state = "FAILURE" if _breaks(after) else str(end.details["state"])
            yield Run(begun.worker, begun.pid, begun.at, end.at, state, claimed)
        else:
            state = "killed" if begun.pid in died else ""
            yield Run(begun.worker, begun.pid, begun.at, died.get(begun.pid), state, claimed)


def _breaks(after: Sequence[JournalEvent]) -> bool:
    """Return whether Celery raised after a run, before the next one in its place."""
    own = next((number for number, one in enumerate(after) if one.kind == STARTED), len(after))
    return any(one.kind == FAILED and one.details["internal"] for one in after[:own])


def _place(event: JournalEvent) -> tuple[int, object]:
    """Return the process of an event, and its thread or greenlet."""
    return event.pid, event.details.get("thread")
