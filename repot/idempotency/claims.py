"""What a claim on a key can be answered with, and what is on record of one; values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from repot.idempotency.fingerprint import Fingerprint


class Outcome(Enum):
    """How a run ends."""

    #: It had its effect; the result is kept.
    DONE = "done"
    #: It failed for good: whoever comes with the key gets the same failure.
    FAILED = "failed"
    #: It had no effect: whoever comes next may run.
    RELEASED = "released"
    #: It was cut short, and nobody knows.
    UNKNOWN = "unknown"


class State(Enum):
    """What a record says; a lease that ran out makes a running one unknown."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    RELEASED = "released"
    UNKNOWN = "unknown"


class Verdict(Enum):
    """What became of the end that a run, or a person, gave a claim."""

    OK = "ok"
    #: The lease had run out; nobody else has claimed the key.
    LATE = "late"
    #: Somebody else has the key now, or it is ended or forgotten.
    LOST = "lost"
    #: The lease has not run out, so that only its owner may end it.
    LIVE = "live"


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who claims a key, and on what terms. Durations are seconds."""

    #: New for each claim; proves ownership later.
    owner: str
    task: str
    task_id: str
    worker: str
    lease_s: float
    kept_s: float
    #: When a person asked for the message to run again; 0 for never. The later, the larger.
    replay: int = 0
    #: Whether an unknown outcome waits for a person.
    parks: bool = False
    #: Unknown outcomes after which it does so in any case.
    most_doubts: int = 3


@dataclass(frozen=True, slots=True)
class Claimed:
    """The key is ours. `after` is the state it was in: None if it was never claimed."""

    fence: int
    #: Runs of this key, this one included.
    runs: int
    after: State | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """An earlier run had its effect. `result` is its text; None if it was not kept."""

    task_id: str
    result: str | None
    #: What its run had to say beside.
    note: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """An earlier run failed for good."""

    task_id: str
    error: str


@dataclass(frozen=True, slots=True)
class Running:
    """Another run holds the key, at least for so many seconds."""

    remaining_s: float
    task_id: str
    worker: str = ""


@dataclass(frozen=True, slots=True)
class Parked:
    """The outcome of an earlier run is unknown and a person has to decide; `first` when nobody was told before."""

    task_id: str
    worker: str
    #: When that run began, in seconds since 1970 by the store's clock.
    began: float
    doubts: int
    first: bool


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The key belongs to another payload."""

    task_id: str


Answer = Claimed | Done | Failed | Running | Parked | Mismatch


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ends, and what is kept of it."""

    outcome: Outcome
    kept_s: float
    #: The result's text; None if it is not kept.
    result: str | None = None
    error: str = ""
    #: A released key stays with a task for so long: it waits to be tried again.
    hold_s: float = 0
    held_for: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """What is on record of a key. Times are seconds since 1970 by the store's clock."""

    key: str
    state: State
    owner: str
    fence: int
    task: str
    task_id: str
    worker: str
    runs: int
    doubts: int
    replay: int
    began: float
    #: None while it has not ended.
    ended: float | None
    #: Seconds until a live lease, or a released key's hold, runs out; 0 if it has.
    remaining_s: float
    #: Whether an unknown outcome waits for a person.
    parked: bool
    has_result: bool
    error: str

    @property
    def is_live(self) -> bool:
        """Whether a run holds the key."""
        return self.state is State.RUNNING

    @property
    def is_stuck(self) -> bool:
        """Whether nobody holds it, and nobody knows whether it was done."""
        return self.state is State.UNKNOWN


class Store(Protocol):
    """Keeps claims. Every method is one round trip, and may be repeated when its answer was lost.

    Raises:
        StoreUnreachable: the store did not answer; whether it acted is unknown.
    """

    def claim(self, fingerprint: Fingerprint, claimant: Claimant) -> Answer:
        """Claim a key for a run."""
        ...

    def renew(self, key: str, claimant: Claimant) -> bool:
        """Hold it for another `lease_s`; False if the lease ran out, or another has the key."""
        ...

    def finish(self, key: str, owner: str, ending: Ending, how: str = "") -> Verdict:
        """End a claim.

        `how`: "" by its run, within the lease; "late" by its run, also after it unless
        somebody has claimed the key since; "person" by somebody who knows better, not
        during the lease; "force" even then.
        """
        ...

    def inspect(self, key: str) -> Record | None:
        """What is on record of a key; None for nothing."""
        ...
