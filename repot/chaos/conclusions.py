"""What follows from the results, in words: only of what was run, and only what the results say."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING

from repot.chaos.matrix import Matrix, Square, Tone, matrix
from repot.chaos.result import Cell

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from repot.chaos.result import Campaign

#: Profiles of equal hardness, before and after a move.
MOVES = (
    ("redis-stock", "amqp-stock"),
    ("redis-late", "amqp-late"),
    ("redis-hardened", "amqp-classic"),
    ("redis-hardened", "amqp-quorum"),
)


class Kind(StrEnum):
    """What a conclusion is about; the value is its heading."""

    FIXED = "What moving from Redis to RabbitMQ fixes"
    NOT_FIXED = "What moving does not fix"
    WORSE = "What moving makes worse"
    GUARD_HELPS = "What the guard fixes"
    GUARD_HELPLESS = "What stays bad with the guard"
    GUARD_HARMS = "What goes wrong only with the guard"
    UNSTEADY = "What differs from run to run"


@dataclass(frozen=True, slots=True)
class Conclusion:
    """One sentence: what holds at which profiles, and the scenarios (or cells) that show it, each with its change."""

    kind: Kind
    where: str
    shown_by: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """The whole sentence."""
        return f"{self.where}: {'; '.join(f'{name} ({change})' for name, change in self.shown_by)}."

    @property
    def scenarios(self) -> tuple[str, ...]:
        """Those that it names."""
        return tuple(dict.fromkeys(name.partition("/")[0] for name, _ in self.shown_by))


@dataclass(frozen=True, slots=True)
class _Place:
    """A profile at which something holds, the one before it if that was left, and under what."""

    profile: str
    source: str = ""
    under: str = ""


@dataclass(frozen=True, slots=True)
class _Change:
    """What was found of a scenario before and after a profile or the guard was chosen."""

    kind: Kind
    place: _Place
    scenario: str
    before: str
    after: str


def conclusions(campaign: Campaign) -> tuple[Conclusion, ...]:
    """All that can be concluded, in the order of their kinds; of cells without a result nothing is said."""
    table = matrix(campaign)
    changes = [*_moves(table), *_guards(table)]
    return tuple(
        conclusion
        for kind in Kind
        for conclusion in (
            _unsteady(table) if kind is Kind.UNSTEADY else _told(kind, [one for one in changes if one.kind is kind])
        )
    )


def _moves(table: Matrix) -> Iterator[_Change]:
    for source, target in MOVES:
        for guard in (False, True):
            under = "with the guard" if guard else "without the guard"
            for row in table.rows:
                before = table.squares.get(Cell(row.name, source, guard))
                after = table.squares.get(Cell(row.name, target, guard))
                kind = _kind(before, after, (Kind.FIXED, Kind.NOT_FIXED, Kind.WORSE))
                if kind and before and after:
                    yield _Change(kind, _Place(target, source, under), row.name, before.words, after.words)


def _guards(table: Matrix) -> Iterator[_Change]:
    for profile in dict.fromkeys(column.profile.name for column in table.columns):
        for row in table.rows:
            before = table.squares.get(Cell(row.name, profile, guard=False))
            after = table.squares.get(Cell(row.name, profile, guard=True))
            kind = _kind(before, after, (Kind.GUARD_HELPS, Kind.GUARD_HELPLESS, Kind.GUARD_HARMS))
            if kind and before and after:
                yield _Change(kind, _Place(profile), row.name, before.words, after.words)


def _kind(before: Square | None, after: Square | None, kinds: tuple[Kind, Kind, Kind]) -> Kind | None:
    """Which of better, as bad and worse it is; None if neither was bad, or one of them has no verdict."""
    if not before or not after or not before.results or not after.results:
        return None
    better, same, worse = kinds
    if before.is_bad:
        return same if after.is_bad else better
    return worse if after.is_bad else None


def _told(kind: Kind, changes: list[_Change]) -> Iterator[Conclusion]:
    """A sentence for each set of changes; places that have the same ones share it."""
    sets: dict[tuple[tuple[str, str], ...], list[_Place]] = {}
    for place, group in groupby(changes, key=lambda one: one.place):
        found = tuple((one.scenario, _change(one.before, one.after)) for one in group)
        sets.setdefault(found, []).append(place)
    for found, places in sets.items():
        yield Conclusion(kind, _where(places), found)


def _where(places: list[_Place]) -> str:
    """The places, at the beginning of a sentence."""
    targets: dict[tuple[str, str], list[str]] = {}
    for place in places:
        targets.setdefault((place.source, place.under), []).append(place.profile)
    unders: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (source, under), profiles in targets.items():
        unders.setdefault((source, tuple(profiles)), []).append(under)
    told = "; ".join(
        ", ".join(
            filter(None, (f"from {source} to {_listed(found)}" if source else f"on {_listed(found)}", _listed(how)))
        )
        for (source, found), how in unders.items()
    )
    return f"{told[0].upper()}{told[1:]}"


def _change(before: str, after: str) -> str:
    return f"{before} both times" if before == after else f"{before} → {after}"


def _unsteady(table: Matrix) -> Iterator[Conclusion]:
    cells = [square for square in table.known if len(square.findings) > 1]
    if cells:
        shown_by = tuple((square.cell.name, square.words) for square in cells)
        yield Conclusion(Kind.UNSTEADY, "Repetitions of a cell that came out differently", shown_by)


def limits(campaign: Campaign) -> str:
    """What the conclusions do not cover, in a sentence; empty if everything was measured."""
    table = matrix(campaign)
    squares = [square for row in table.rows for square in table.row(row)]
    parts = [
        f"{number} {text}"
        for tone, text in (
            (Tone.INAPPLICABLE, "without a meaning"),
            (Tone.FAILED, "whose experiment failed"),
            (Tone.UNMEASURED, "not run"),
        )
        if (number := sum(square.tone is tone for square in squares))
    ]
    stopped = "The run was stopped before its end. " if campaign.interrupted else ""
    return f"{stopped}Nothing is said of some cells: {_listed(parts)}." if parts else stopped.strip()


def _listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
