"""One run of a cell, and what it is run with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.result import Cell

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from threading import Event, Lock

    from repot.brokers.local import Server
    from repot.brokers.local.ground import Ground
    from repot.brokers.local.process import GuardedFolder
    from repot.chaos.profiles import Profile
    from repot.chaos.result import Finding
    from repot.chaos.scenarios import Scenario
    from repot.chaos.target import Target


@dataclass(frozen=True, slots=True)
class Case:
    """One run of a cell."""

    scenario: Scenario
    profile: Profile
    guard: bool
    number: int = 1

    @property
    def cell(self) -> Cell:
        """Its place in the matrix."""
        return Cell(self.scenario.name, self.profile.name, self.guard)

    @property
    def name(self) -> str:
        """Unique among the cases of a campaign; also the name of its queue."""
        return self.cell.run(self.number)

    def command(self, seed: int, options: str) -> str:
        """What runs it again; `options` are those of the whole campaign."""
        guard = "on" if self.guard else "off"
        again = f"repot chaos run {self.scenario.name} --profile {self.profile.name} --guard {guard} --seed {seed}"
        return f"{again} {options}".strip()


@dataclass(frozen=True, slots=True)
class Laboratory:
    """What an experiment uses, and how it tells of its steps.

    Attributes:
        home: what holds `folder`, if it is to go with the campaign: not before its workers.
    """

    ground: Ground
    results: Server
    toxiproxy_url: str
    folder: Path
    home: GuardedFolder | None
    seed: int
    target: Target
    options: str
    expected: tuple[Finding, ...] | None
    say: Callable[[Case, str], None]
    stop: Event
    #: Held while two workers start. A start takes a core for a second, and a worker
    #: starved of it sends no heartbeats: several at once would add faults of their own.
    starting: Lock
