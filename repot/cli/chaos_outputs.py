"""The shape of what `repot chaos` and `repot demo` print with `--json`; `repot.cli.outputs` has those of all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from repot.chaos.report.explanation import Statement
from repot.chaos.report.result import Campaign

__all__ = ["Campaign", "ChaosList", "Demo", "Load"]


@dataclass
class Scenario:
    """A scenario of the fault matrix."""

    name: str
    title: str
    lesson: str
    smoke: bool


@dataclass
class Profile:
    """A profile of the fault matrix; `broker` is the scheme of its address."""

    name: str
    title: str
    broker: str


@dataclass
class ChaosList:
    """`repot chaos list`."""

    scenarios: list[Scenario]
    profiles: list[Profile]


@dataclass
class LoadTask:
    """The verdicts on the messages of one task; `verdicts` has their numbers."""

    role: str
    name: str
    verdicts: dict[str, int]


@dataclass
class BadTask:
    """A task whose verdict is not acceptable, and the faults that it met."""

    task: str
    role: str
    name: str
    verdict: str
    reason: str
    met: list[dict[str, Any]]


@dataclass
class Load:
    """`repot chaos load`: `sums` has the numbers of verdicts by role."""

    app: str
    profile: str
    guard: bool
    seed: int
    created: str
    took_s: float
    product: str
    version: str
    versions: dict[str, str]
    rate: float
    for_s: float
    planned: int
    sent: int
    behind_s: float
    task_results: list[dict[str, Any]]
    windows: list[dict[str, Any]]
    inapplicable: dict[str, str]
    notices: list[dict[str, Any]]
    left: str
    untested: str
    command: str
    ledger: str
    places: dict[str, tuple[str, int]]
    sums: dict[str, dict[str, int]]
    tasks: list[LoadTask]
    bad: list[BadTask]


@dataclass
class Demo:
    """`repot demo`: its statements by heading, and the results of its cells."""

    statements: dict[str, list[Statement]]
    results: list[dict[str, Any]]
    cells: list[dict[str, Any]]
