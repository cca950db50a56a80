"""Sentences about what moving to RabbitMQ and what the guard change, derived from the cells that were run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING

from repot.chaos.report.matrix import CellStatus, CellSummary, Matrix, matrix
from repot.chaos.report.result import Cell

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from repot.chaos.report.result import Campaign

#: Comparable profiles: the one before a move, and the one after it.
MOVES = (
    ("redis-stock", "amqp-stock"),
    ("redis-late", "amqp-late"),
    ("redis-hardened", "amqp-classic"),
    ("redis-hardened", "amqp-quorum"),
)


class ConclusionKind(StrEnum):
    """The subject of a conclusion; the value is its heading."""

    FIXED = "What moving from Redis to RabbitMQ fixes"
    NOT_FIXED = "What moving does not fix"
    WORSE = "What moving makes worse"
    GUARD_HELPS = "What the guard fixes"
    GUARD_HELPLESS = "What the guard does not fix"
    GUARD_HARMS = "What is bad only with the guard"
    UNSTEADY = "What differs between runs"


#: Better, equally bad, worse.
_MOVE_KINDS = (ConclusionKind.FIXED, ConclusionKind.NOT_FIXED, ConclusionKind.WORSE)
_GUARD_KINDS = (ConclusionKind.GUARD_HELPS, ConclusionKind.GUARD_HELPLESS, ConclusionKind.GUARD_HARMS)


@dataclass(frozen=True, slots=True)
class Conclusion:
    """One sentence: for which profiles it holds, and the scenarios (or cells) that show it, each with its change."""

    kind: ConclusionKind
    where: str
    shown_by: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """The whole sentence."""
        return f"{self.where}: {'; '.join(f'{name} ({change})' for name, change in self.shown_by)}."

    @property
    def scenarios(self) -> tuple[str, ...]:
        """The scenarios that it names."""
        return tuple(dict.fromkeys(name.partition("/")[0] for name, _ in self.shown_by))


@dataclass(frozen=True, slots=True)
class _Scope:
    """The profile that a change is about; for a move, the profile before it, and whether the guard was on."""

    profile: str
    source: str = ""
    guard: str = ""


@dataclass(frozen=True, slots=True)
class _Change:
    """The verdicts of a scenario before and after a move, or without and with the guard."""

    kind: ConclusionKind
    scope: _Scope
    scenario: str
    before: str
    after: str


def conclusions(campaign: Campaign) -> tuple[Conclusion, ...]:
    """Return all conclusions in the order of their kinds; cells without a result take no part."""
    table = matrix(campaign)
    changes = [*_moves(table), *_guards(table)]
    return tuple(
        conclusion
        for kind in ConclusionKind
        for conclusion in (
            _unsteady(table)
            if kind is ConclusionKind.UNSTEADY
            else _grouped(kind, [one for one in changes if one.kind is kind])
        )
    )


def _moves(table: Matrix) -> Iterator[_Change]:
    for source, target in MOVES:
        for guard in (False, True):
            words = "with the guard" if guard else "without the guard"
            for row in table.rows:
                before = table.summaries.get(Cell(row.name, source, guard))
                after = table.summaries.get(Cell(row.name, target, guard))
                kind = _kind(before, after, _MOVE_KINDS)
                if kind and before and after:
                    yield _Change(kind, _Scope(target, source, words), row.name, before.text, after.text)


def _guards(table: Matrix) -> Iterator[_Change]:
    for profile in dict.fromkeys(column.profile.name for column in table.columns):
        for row in table.rows:
            before = table.summaries.get(Cell(row.name, profile, guard=False))
            after = table.summaries.get(Cell(row.name, profile, guard=True))
            kind = _kind(before, after, _GUARD_KINDS)
            if kind and before and after:
                yield _Change(kind, _Scope(profile), row.name, before.text, after.text)


def _kind(
    before: CellSummary | None, after: CellSummary | None, kinds: tuple[ConclusionKind, ...]
) -> ConclusionKind | None:
    """Choose from better, equally bad and worse; None if neither is bad, or one of them has no verdict."""
    if not before or not after or not before.results or not after.results:
        return None
    better, same, worse = kinds
    if before.is_bad:
        return same if after.is_bad else better
    return worse if after.is_bad else None


def _grouped(kind: ConclusionKind, changes: list[_Change]) -> Iterator[Conclusion]:
    """Yield a sentence for each set of changes; scopes with the same changes share it."""
    sets: dict[tuple[tuple[str, str], ...], list[_Scope]] = {}
    for scope, group in groupby(changes, key=lambda one: one.scope):
        found = tuple((one.scenario, _change(one.before, one.after)) for one in group)
        sets.setdefault(found, []).append(scope)
    for found, scopes in sets.items():
        yield Conclusion(kind, _where(scopes), found)


def _where(scopes: list[_Scope]) -> str:
    """Return the scopes as the beginning of a sentence."""
    targets: dict[tuple[str, str], list[str]] = {}
    for scope in scopes:
        targets.setdefault((scope.source, scope.guard), []).append(scope.profile)
    guards: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (source, guard), profiles in targets.items():
        guards.setdefault((source, tuple(profiles)), []).append(guard)
    text = "; ".join(
        ", ".join(
            filter(None, (f"from {source} to {_listed(found)}" if source else f"on {_listed(found)}", _listed(how)))
        )
        for (source, found), how in guards.items()
    )
    return f"{text[0].upper()}{text[1:]}"


def _change(before: str, after: str) -> str:
    return f"{before} both times" if before == after else f"{before} → {after}"


def _unsteady(table: Matrix) -> Iterator[Conclusion]:
    cells = [summary for summary in table.known if len(summary.verdicts) > 1]
    if cells:
        shown_by = tuple((summary.cell.name, summary.spread) for summary in cells)
        yield Conclusion(ConclusionKind.UNSTEADY, "Repetitions of one cell found different verdicts", shown_by)


def limits(campaign: Campaign) -> str:
    """Return what the conclusions do not cover, as a sentence; empty if everything was measured."""
    table = matrix(campaign)
    summaries = [summary for row in table.rows for summary in table.row(row)]
    parts = [
        f"{number} {text}"
        for status, text in (
            (CellStatus.INAPPLICABLE, "not applicable"),
            (CellStatus.FAILED, "whose experiment failed"),
            (CellStatus.UNMEASURED, "not run"),
        )
        if (number := sum(summary.status is status for summary in summaries))
    ]
    stopped = "The run was interrupted. " if campaign.interrupted else ""
    return f"{stopped}These cells have no verdict: {_listed(parts)}." if parts else stopped.strip()


def _listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
