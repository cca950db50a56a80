"""A scenario: a fault, the phase of a task at which it is injected, and how long it lasts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from repot.chaos.instruments.failpoints import Phase

if TYPE_CHECKING:
    from repot.chaos.faults import Fault

#: Separates the name of a scenario from another phase for its fault.
AT = "@"


class Needs(StrEnum):
    """The kind of test broker that a scenario needs."""

    #: Any: the scenario does not harm it, so cases share it.
    ANY = "any"
    #: One of its own, because the fault harms it.
    OWN = "own"
    #: Replicated servers: three RabbitMQ nodes, or a Redis primary and its replica.
    REPLICATED = "replicated"

    @property
    def rarity(self) -> int:
        """A rank: the higher, the fewer such brokers run at a time."""
        return list(Needs).index(self)


class SendTime(StrEnum):
    """When the task under test is sent, and over which link."""

    #: Before the fault; the task stops at the scenario's phase.
    BEFORE = "before"
    #: While the fault is active, over a link that it does not affect.
    INTO_THE_FAULT = "into the fault"
    #: While the fault is active, over the link that it affects; the worker's link is not affected.
    OVER_THE_TARGET_LINK = "over the target link"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One thing that can happen to a task: a fault at a phase of the task, for some time.

    Attributes:
        lesson: what the scenario shows, in a sentence or two.
        phase: the failpoint at which the task under test stops until the fault is active; None sends it during the
            fault.
        lasts_s: how long the fault lasts; 0 undoes it at once, None waits until the task has ended.
        unseen: with a `lasts_s` of 0, the worker's main process is paused during the fault: it observes the
            consequences of the fault, never the fault itself.
        works_s: how long the task works after it is released.
        retries: how often the task asks for a retry before it works.
        deadly: the task kills its own process in each run instead of having its effect.
        reruns: with the guard, a task whose outcome is unknown runs again instead of being parked.
        crowded: if the fault harms the broker, more tasks wait behind the task under test than a worker reserves.
        countdown_s: the countdown of the task.
        sent: when the task is sent, and over which link.
        stills_worker: the fault itself stops or ends the target worker, so its silence during the fault is no hang.
        movable: the fault can be injected at another phase.
        any_instant: the fault can be injected at any instant of a load (`repot chaos load`): it needs no task that
            waits for it, and a worker can go on after it.
    """

    name: str
    title: str
    lesson: str
    fault: Fault | None
    phase: Phase | None
    lasts_s: float | None = None
    unseen: bool = False
    works_s: float = 0
    retries: int = 0
    deadly: bool = False
    reruns: bool = False
    countdown_s: float = 0
    crowded: bool = True
    needs: Needs = Needs.ANY
    sent: SendTime = SendTime.BEFORE
    stills_worker: bool = False
    movable: bool = True
    smoke: bool = False
    any_instant: bool = False

    @property
    def has_other_phases(self) -> bool:
        """Whether its fault can be injected at another phase; not if it has no phase."""
        return self.movable and None not in (self.fault, self.phase) and self.sent is SendTime.BEFORE

    def moved_to(self, phase: Phase) -> Scenario:
        """Return a scenario named `NAME@PHASE` with the same fault at another phase."""
        assert self.fault is not None, "it has no fault"
        return replace(
            self,
            name=f"{self.name}{AT}{phase}",
            title=f"{self.name} at the phase {phase}: {self.fault.description}",
            lesson="The table of expectations has no entry for it; any verdict that is not acceptable fails.",
            phase=phase,
            retries=self.retries or int(phase is Phase.RETRY_PUBLISH),
            smoke=False,
            any_instant=False,
        )


#: Longer than a worker may stand still without a log message before it counts as hung.
BEYOND_TIMEOUTS_S = 13
#: Longer than the visibility timeout. Workers reconnect 0, 2, 6 and 12 s after the loss: if an outage ended at one of
#: these instants, chance would decide whether they succeed.
LINK_AWAY_S = 10
