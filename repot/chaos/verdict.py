"""What became of a task, decided from the journal alone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from repot.worker.journal import DELIVERED, EFFECT, ENDED, STARTED, Happening

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a task by a worker; `ended` is None while it goes on."""

    worker: str
    started: float
    ended: float | None
    state: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """One hand-over of a message to a worker, and whether the broker marked it as repeated."""

    worker: str
    at: float
    redelivered: bool


@dataclass(frozen=True, slots=True)
class Effect:
    """What a task did to the world, and where."""

    worker: str
    at: float


@dataclass(frozen=True, slots=True)
class Story:
    """All that the journal says of one task, in the order of time."""

    task: str
    deliveries: tuple[Delivery, ...]
    runs: tuple[Run, ...]
    effects: tuple[Effect, ...]

    @property
    def goes_on(self) -> bool:
        """Whether some run has not ended."""
        return any(run.ended is None for run in self.runs)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one task.

    `marked` is None when nothing was redelivered; otherwise whether each
    redelivery carried the broker's mark. `lost` means: accepted by the broker,
    never completed, and nowhere to be found.
    """

    deliveries: int
    executed: int
    effects: int
    redelivered: bool
    marked: bool | None
    overlapped: bool
    lost: bool

    @property
    def summary(self) -> str:
        """The verdict in one or two words."""
        if self.lost:
            return "lost"
        if self.executed == 0:
            return "not run"
        times = {1: "ran once", 2: "ran twice"}.get(self.executed, f"ran {self.executed} times")
        return f"{times}, overlapping" if self.overlapped else times


def story(task: str, happenings: Iterable[Happening]) -> Story:
    """Pick one task's deliveries, runs and effects out of the journal."""
    mine = [happening for happening in happenings if happening.task == task]
    return Story(
        task,
        deliveries=tuple(
            Delivery(found.worker, found.at, bool(found.details["redelivered"]))
            for found in mine
            if found.what == DELIVERED
        ),
        runs=_runs(mine),
        effects=tuple(Effect(found.worker, found.at) for found in mine if found.what == EFFECT),
    )


def judge(told: Story, left: int) -> Verdict:
    """Judge a task whose runs have ended; `left` counts the messages still at the broker."""
    completed = any(run.state == "SUCCESS" for run in told.runs)
    repeated = told.deliveries[1:]
    return Verdict(
        deliveries=len(told.deliveries),
        executed=len(told.runs),
        effects=len(told.effects),
        redelivered=bool(repeated),
        marked=all(delivery.redelivered for delivery in repeated) if repeated else None,
        overlapped=_overlap(told.runs),
        lost=not completed and left == 0,
    )


def redelivered_after(told: Story, since: float) -> float | None:
    """Seconds from `since` to the second delivery; None without one."""
    return told.deliveries[1].at - since if len(told.deliveries) > 1 else None


def _runs(mine: Sequence[Happening]) -> tuple[Run, ...]:
    """Pair each start with the end in the same process: a process runs one task at a time."""
    runs = []
    for number, begun in enumerate(mine):
        if begun.what != STARTED:
            continue
        end = next((later for later in mine[number:] if later.what == ENDED and later.pid == begun.pid), None)
        runs.append(Run(begun.worker, begun.at, end.at if end else None, end.details["state"] if end else ""))
    return tuple(runs)


def _overlap(runs: Sequence[Run]) -> bool:
    """Whether a run began before an earlier one had ended."""
    return any(earlier.ended is None or later.started < earlier.ended for earlier, later in pairwise(runs))
