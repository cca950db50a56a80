"""A campaign as a table: scenarios down, profiles with and without the guard across."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from repot.chaos.result import About, Campaign, Cell, Fate, Finding, Result, Unmeasured
from repot.chaos.verdict import Word

if TYPE_CHECKING:
    from collections.abc import Iterable


R = TypeVar("R", Result, Unmeasured)


class Tone(StrEnum):
    """How a cell is to be taken, at a glance."""

    GOOD = "good"
    #: Nothing is lost or done twice, but a person or a supervisor has something to do.
    NOTE = "note"
    BAD = "bad"
    FAILED = "failed"
    INAPPLICABLE = "inapplicable"
    UNMEASURED = "unmeasured"

    @property
    def sign(self) -> str:
        """One character, for whoever sees no colour."""
        return _SIGNS[self]

    @property
    def meaning(self) -> str:
        """What the legend says."""
        return _MEANINGS[self]


_SIGNS = {
    Tone.GOOD: "✓",
    Tone.NOTE: "!",
    Tone.BAD: "✗",
    Tone.FAILED: "?",
    Tone.INAPPLICABLE: "-",
    Tone.UNMEASURED: "·",
}
_MEANINGS = {
    Tone.GOOD: "completed, one effect",
    Tone.NOTE: "nothing lost or done twice, but somebody has to act: refused, set aside, or a worker that ended",
    Tone.BAD: "lost, done twice, left behind, or a worker that hangs",
    Tone.FAILED: "the experiment itself failed: no verdict",
    Tone.INAPPLICABLE: "means nothing here",
    Tone.UNMEASURED: "was not run",
}


def tone(finding: Finding) -> Tone:
    """How a finding is to be taken."""
    if finding.is_bad:
        return Tone.BAD
    harmless = finding.subject.is_harmless and finding.others.is_harmless
    return Tone.GOOD if harmless and finding.worker is Fate.CONSUMES else Tone.NOTE


@dataclass(frozen=True, slots=True)
class Square:
    """All repetitions of one cell."""

    cell: Cell
    results: tuple[Result, ...] = ()
    unmeasured: tuple[Unmeasured, ...] = ()

    @property
    def findings(self) -> tuple[tuple[Finding, int], ...]:
        """What was found and how often, the worst first."""
        counted = Counter(result.finding for result in self.results)
        order = [Tone.BAD, Tone.NOTE, Tone.GOOD]
        return tuple(sorted(counted.items(), key=lambda one: (order.index(tone(one[0])), -one[1])))

    @property
    def differs(self) -> bool:
        """Whether repetitions found different things, or some of them nothing."""
        return len(self.findings) > 1 or (bool(self.results) and bool(self.unmeasured))

    @property
    def is_bad(self) -> bool:
        """Whether any repetition found what a user would not accept."""
        return any(result.finding.is_bad for result in self.results)

    @property
    def unexpected(self) -> tuple[Result, ...]:
        """Repetitions that did not come as the table says."""
        return tuple(result for result in self.results if not result.as_expected)

    @property
    def expected(self) -> Finding | None:
        """What the table says of it."""
        return self.results[0].expected if self.results else None

    @property
    def tone(self) -> Tone:
        """Of the worst that was found."""
        if self.results:
            return tone(self.findings[0][0])
        if not self.unmeasured:
            return Tone.UNMEASURED
        return Tone.FAILED if any(one.failed for one in self.unmeasured) else Tone.INAPPLICABLE

    @property
    def words(self) -> str:
        """What was found, in one line: `lost`, or `lost in 2 of 5, else ok`."""
        if not self.results:
            return {Tone.FAILED: "failed", Tone.INAPPLICABLE: "n/a"}.get(self.tone, "")
        if len(self.findings) == 1:
            return str(self.findings[0][0])
        total = len(self.results)
        return "; ".join(f"{finding} in {often} of {total}" for finding, often in self.findings)


@dataclass(frozen=True, slots=True)
class Column:
    """A profile with or without the guard."""

    profile: About
    guard: bool

    @property
    def name(self) -> str:
        """As in `amqp-quorum, guarded`."""
        return f"{self.profile.name}, guarded" if self.guard else self.profile.name

    @property
    def guarded(self) -> str:
        """The half of the name that tells of the guard."""
        return "guarded" if self.guard else "plain"


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows, columns, and a square wherever anything is known."""

    rows: tuple[About, ...]
    columns: tuple[Column, ...]
    squares: dict[Cell, Square]

    def square(self, row: About, column: Column) -> Square:
        """The square there, an empty one if nothing was run."""
        cell = Cell(row.name, column.profile.name, column.guard)
        return self.squares.get(cell) or Square(cell)

    def row(self, row: About) -> tuple[Square, ...]:
        """The squares of a row, from left to right."""
        return tuple(self.square(row, column) for column in self.columns)

    @property
    def known(self) -> tuple[Square, ...]:
        """All squares of which something is known, row by row."""
        return tuple(square for row in self.rows for square in self.row(row) if square.cell in self.squares)


def matrix(campaign: Campaign) -> Matrix:
    """Lay out a campaign; rows and columns without any cell are left out."""
    results, unmeasured = _by_cell(campaign.results), _by_cell(campaign.unmeasured)
    squares = {cell: Square(cell, results.get(cell, ()), unmeasured.get(cell, ())) for cell in (*results, *unmeasured)}
    columns = tuple(
        Column(profile, guard)
        for profile in _known(campaign.profiles, (cell.profile for cell in squares))
        for guard in (False, True)
        if any(cell.profile == profile.name and cell.guard is guard for cell in squares)
    )
    return Matrix(_known(campaign.scenarios, (cell.scenario for cell in squares)), columns, squares)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many cells there are of each sort; a cell counts once, however often it was repeated."""

    cells: int
    runs: int
    unexpected: int
    lost: int
    duplicated: int
    hung: int
    differing: int
    failed: int
    inapplicable: int


def counts(table: Matrix) -> Counts:
    """Count the cells of a matrix; one is lost in which any task was lost, the subject or another."""

    def having(word: Word) -> int:
        return sum(any(account.word is word for one in square.results for account in one.accounts) for square in known)

    known = table.known
    tones = Counter(square.tone for square in known)
    return Counts(
        cells=sum(bool(square.results) for square in known),
        runs=sum(len(square.results) for square in known),
        unexpected=sum(bool(square.unexpected) for square in known),
        lost=having(Word.LOST),
        duplicated=having(Word.DUPLICATED),
        hung=sum(any(one.finding.worker is Fate.HUNG for one in square.results) for square in known),
        differing=sum(square.differs for square in known),
        failed=sum(any(one.failed for one in square.unmeasured) for square in known),
        inapplicable=tones[Tone.INAPPLICABLE],
    )


def _by_cell(found: Iterable[R]) -> dict[Cell, tuple[R, ...]]:
    """The repetitions of each cell, in their order."""
    groups: dict[Cell, list[R]] = {}
    for one in sorted(found, key=attrgetter("number")):
        groups.setdefault(one.cell, []).append(one)
    return {cell: tuple(ones) for cell, ones in groups.items()}


def _known(told: Iterable[About], used: Iterable[str]) -> tuple[About, ...]:
    """Those that are used, in the order in which they are told of, then the ones nobody told of."""
    names = dict.fromkeys(used)
    listed = [about for about in told if about.name in names]
    untold = [About(name, "", "") for name in names if name not in {about.name for about in listed}]
    return (*listed, *untold)
