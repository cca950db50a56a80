"""The matrix of a campaign: a row for each scenario, a column for each profile with and without the guard."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from repot.chaos.report.result import About, Campaign, Cell, CellVerdict, Result, Unmeasured, WorkerOutcome
from repot.chaos.runner.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable


R = TypeVar("R", Result, Unmeasured)


class CellStatus(StrEnum):
    """How good or bad a cell is."""

    GOOD = "good"
    #: Nothing was lost or duplicated, but a person or a supervisor has to act, or it is not due yet.
    NOTE = "note"
    BAD = "bad"
    FAILED = "failed"
    INAPPLICABLE = "inapplicable"
    UNMEASURED = "unmeasured"

    @property
    def symbol(self) -> str:
        """One character that shows the status without colour."""
        return _SYMBOLS[self]

    def meaning(self, effects: str) -> str:
        """The text for a legend."""
        return _MEANINGS[self].format(effects=effects)


_SYMBOLS = {
    CellStatus.GOOD: "✓",
    CellStatus.NOTE: "!",
    CellStatus.BAD: "✗",
    CellStatus.FAILED: "?",
    CellStatus.INAPPLICABLE: "-",
    CellStatus.UNMEASURED: "·",
}
_MEANINGS = {
    CellStatus.GOOD: "completed, {effects}",
    CellStatus.NOTE: "nothing lost or duplicated, but not completed: refused, parked, postponed, or a worker exited",
    CellStatus.BAD: "lost, failed, duplicated, left behind, unexpected, or a worker that hangs",
    CellStatus.FAILED: "no verdict: the experiment itself failed",
    CellStatus.INAPPLICABLE: "not applicable",
    CellStatus.UNMEASURED: "not run",
}


def status(verdict: CellVerdict) -> CellStatus:
    """Return the status of a cell with this verdict."""
    if verdict.is_bad:
        return CellStatus.BAD
    harmless = all(one.is_harmless for one in (verdict.task, verdict.children, verdict.others))
    return CellStatus.GOOD if harmless and verdict.worker is WorkerOutcome.CONSUMES else CellStatus.NOTE


@dataclass(frozen=True, slots=True)
class CellSummary:
    """All repetitions of one cell."""

    cell: Cell
    results: tuple[Result, ...] = ()
    unmeasured: tuple[Unmeasured, ...] = ()

    @property
    def verdicts(self) -> tuple[tuple[CellVerdict, int], ...]:
        """Each verdict with the number of runs that found it, the worst first."""
        counted = Counter(result.verdict for result in self.results)
        order = [CellStatus.BAD, CellStatus.NOTE, CellStatus.GOOD]
        return tuple(sorted(counted.items(), key=lambda one: (order.index(status(one[0])), -one[1])))

    @property
    def differs(self) -> bool:
        """Whether repetitions found different verdicts, or some have no verdict."""
        return len(self.verdicts) > 1 or (bool(self.results) and bool(self.unmeasured))

    @property
    def is_bad(self) -> bool:
        """Whether the verdict of any repetition is not acceptable."""
        return any(result.verdict.is_bad for result in self.results)

    @property
    def unexpected(self) -> tuple[Result, ...]:
        """The repetitions whose verdict is not the expected one."""
        return tuple(result for result in self.results if not result.as_expected)

    @property
    def expected(self) -> CellVerdict | None:
        """The entry of the table of expectations; None if it has no entry or there is no result."""
        return self.results[0].expected if self.results else None

    @property
    def status(self) -> CellStatus:
        """The status of the worst verdict; without a verdict, the reason."""
        if self.results:
            return status(self.verdicts[0][0])
        if not self.unmeasured:
            return CellStatus.UNMEASURED
        return CellStatus.FAILED if any(one.failed for one in self.unmeasured) else CellStatus.INAPPLICABLE

    @property
    def text(self) -> str:
        """The verdicts in one line: `lost`, `lost 5 of 5`, or `not stable: redelivered 3, lost 2 of 5`."""
        return f"not stable: {self.spread}" if self.differs else self.spread

    @property
    def spread(self) -> str:
        """How many of the runs found each verdict, the most frequent first; of a single run its verdict."""
        if not self.results:
            return {CellStatus.FAILED: "failed", CellStatus.INAPPLICABLE: "n/a"}.get(self.status, "")
        total = len(self.results) + len(self.unmeasured)
        if total == 1:
            return str(self.verdicts[0][0])
        often = sorted(self.verdicts, key=lambda one: -one[1])
        parts = [f"{verdict} {number}" for verdict, number in often]
        parts += [f"no verdict {len(self.unmeasured)}"] if self.unmeasured else []
        # a verdict of several parts has commas
        return f"{('; ' if any(',' in one for one in parts) else ', ').join(parts)} of {total}"


@dataclass(frozen=True, slots=True)
class Column:
    """A profile with or without the guard."""

    profile: About
    guard: bool

    @property
    def name(self) -> str:
        """Its name, as `amqp-quorum, guarded`."""
        return f"{self.profile.name}, guarded" if self.guard else self.profile.name

    @property
    def guarded(self) -> str:
        """`guarded` or `plain`."""
        return "guarded" if self.guard else "plain"


@dataclass(frozen=True, slots=True)
class Matrix:
    """Scenarios as rows, profiles with and without the guard as columns, and what is known about each cell."""

    rows: tuple[About, ...]
    columns: tuple[Column, ...]
    summaries: dict[Cell, CellSummary]
    #: What a task that was completed once has, as text.
    effects: str

    def summary(self, row: About, column: Column) -> CellSummary:
        """Return the summary of a cell; an empty one if it was not run."""
        cell = Cell(row.name, column.profile.name, column.guard)
        return self.summaries.get(cell) or CellSummary(cell)

    def row(self, row: About) -> tuple[CellSummary, ...]:
        """Return the summaries of a row, from left to right."""
        return tuple(self.summary(row, column) for column in self.columns)

    @property
    def known(self) -> tuple[CellSummary, ...]:
        """The summaries with results or reasons, row by row."""
        return tuple(summary for row in self.rows for summary in self.row(row) if summary.cell in self.summaries)


def matrix(campaign: Campaign) -> Matrix:
    """Arrange the results of a campaign in a matrix, without empty rows and columns."""
    results, unmeasured = _by_cell(campaign.results), _by_cell(campaign.unmeasured)
    summaries = {
        cell: CellSummary(cell, results.get(cell, ()), unmeasured.get(cell, ())) for cell in (*results, *unmeasured)
    }
    columns = tuple(
        Column(profile, guard)
        for profile in _known(campaign.profiles, (cell.profile for cell in summaries))
        for guard in (False, True)
        if any(cell.profile == profile.name and cell.guard is guard for cell in summaries)
    )
    return Matrix(
        _known(campaign.scenarios, (cell.scenario for cell in summaries)), columns, summaries, campaign.effects_text
    )


@dataclass(frozen=True, slots=True)
class CellCounts:
    """How many cells have a property; a cell counts once, however often it was repeated."""

    cells: int
    runs: int
    unexpected: int
    lost: int
    duplicated: int
    hung: int
    differing: int
    failed: int
    inapplicable: int


def counts(table: Matrix) -> CellCounts:
    """Count the cells of a matrix; `lost` and `duplicated` count every task, not only the task under test."""

    def having(word: Verdict) -> int:
        return sum(
            any(account.verdict is word for one in summary.results for account in one.task_results) for summary in known
        )

    known = table.known
    statuses = Counter(summary.status for summary in known)
    return CellCounts(
        cells=sum(bool(summary.results) for summary in known),
        runs=sum(len(summary.results) for summary in known),
        unexpected=sum(bool(summary.unexpected) for summary in known),
        lost=having(Verdict.LOST),
        duplicated=having(Verdict.DUPLICATED),
        hung=sum(any(one.verdict.worker is WorkerOutcome.HUNG for one in summary.results) for summary in known),
        differing=sum(summary.differs for summary in known),
        failed=sum(any(one.failed for one in summary.unmeasured) for summary in known),
        inapplicable=statuses[CellStatus.INAPPLICABLE],
    )


def _by_cell(found: Iterable[R]) -> dict[Cell, tuple[R, ...]]:
    """Group runs by cell, in the order of their numbers."""
    groups: dict[Cell, list[R]] = {}
    for one in sorted(found, key=attrgetter("number")):
        groups.setdefault(one.cell, []).append(one)
    return {cell: tuple(ones) for cell, ones in groups.items()}


def _known(described: Iterable[About], used: Iterable[str]) -> tuple[About, ...]:
    """Return the descriptions that are used, in their order, then names without a description."""
    names = dict.fromkeys(used)
    listed = [about for about in described if about.name in names]
    unlisted = [About(name, "", "") for name in names if name not in {about.name for about in listed}]
    return (*listed, *unlisted)
