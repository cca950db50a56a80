"""A case, which is one run of a cell, and the testbed it runs on."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from repot.chaos.report.result import Cell

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from threading import Event, Lock

    from repot.chaos.report.result import CellVerdict
    from repot.chaos.runner.target_task import Target
    from repot.chaos.scenarios.profiles import Profile
    from repot.chaos.scenarios.scenario import Scenario
    from repot.testbed import Server
    from repot.testbed.process import ReapedDirectory
    from repot.testbed.test_broker import TestBroker


@dataclass(frozen=True, slots=True)
class Case:
    """One run of a cell."""

    scenario: Scenario
    profile: Profile
    guard: bool
    number: int = 1

    @property
    def cell(self) -> Cell:
        """Return the cell of the matrix."""
        return Cell(self.scenario.name, self.profile.name, self.guard)

    @property
    def name(self) -> str:
        """Return the name: unique in a campaign, and also the name of the queue."""
        return self.cell.run(self.number)

    def random(self, seed: int, token: str = "") -> Random:
        """Return the source of random amounts and task ids; `token` is that of an external broker."""
        return Random(f"{seed}/{self.unique_name(token)}")  # noqa: S311 - repeatable

    def unique_name(self, token: str) -> str:
        """Return a name that is also unique on an external broker."""
        return f"{self.name}-{token}" if token else self.name

    def command(self, seed: int, options: str) -> str:
        """Return the command that runs the case again; `options` are those of the campaign."""
        guard = "on" if self.guard else "off"
        command = f"repot chaos run {self.scenario.name} --profile {self.profile.name} --guard {guard} --seed {seed}"
        return f"{command} {options}".strip()


@dataclass(frozen=True, slots=True)
class Testbed:
    """What an experiment uses, and how it reports its steps.

    Attributes:
        home: the reaped directory that contains `directory`, in a campaign; it outlives the workers.
    """

    test_broker: TestBroker
    results: Server
    toxiproxy_url: str
    directory: Path
    home: ReapedDirectory | None
    seed: int
    target: Target
    options: str
    expected: tuple[CellVerdict, ...] | None
    say: Callable[[Case, str], None]
    stop: Event
    #: Held while two workers start. A start uses one core for a second, and a worker without CPU time sends no
    #: heartbeats: several starts at once would add faults.
    starting: Lock
