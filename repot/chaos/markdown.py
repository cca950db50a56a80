"""The results as a table for the docs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.chaos.conclusions import conclusions, limits
from repot.chaos.legible import legible
from repot.chaos.matrix import Matrix, Square, Tone, counts, matrix

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from repot.chaos.result import Campaign


def as_markdown(campaign: Campaign) -> str:
    """Date and versions, the matrix, and what follows from it."""
    shown = legible(campaign)
    table = matrix(shown)
    parts = ["# The fault matrix", "\n".join(_head(shown, table)), "\n".join(_table(table)), _KEY, *_conclusions(shown)]
    return "\n\n".join(parts) + "\n"


_KEY = "**Bold**: not acceptable. ≠: not as expected. n/a: means nothing there. A blank cell was not run."


def _head(campaign: Campaign, table: Matrix) -> Iterator[str]:
    total = counts(table)
    versions = ", ".join(f"{name} {number}" for name, number in campaign.versions.items())
    yield f"Measured {campaign.created} with {_escaped(versions)}; seed {campaign.seed}."
    yield f"{total.cells} cells, {total.runs} runs, {total.unexpected} cells not as expected."
    if campaign.app:
        yield f"The task is `{campaign.app}`."
    if campaign.scaled:
        scaled = ", ".join(f"{name} {value:g} s" for name, value in campaign.scaled.items())
        yield f"Times are scaled, seconds stand for minutes: {_escaped(scaled)}."


def _table(table: Matrix) -> Iterator[str]:
    yield _line(("scenario", *(column.name for column in table.columns)))
    yield _line(["---"] * (len(table.columns) + 1))
    for row in table.rows:
        yield _line((row.name, *map(_words, table.row(row))))


def _words(square: Square) -> str:
    words = _escaped(square.words)
    mark = " ≠" if square.unexpected else ""
    return f"**{words}**{mark}" if square.tone is Tone.BAD else f"{words}{mark}"


def _conclusions(campaign: Campaign) -> Iterator[str]:
    kind = None
    for one in conclusions(campaign):
        if one.kind is not kind:
            kind = one.kind
            yield f"## {kind.value}"
        yield _escaped(one.text)
    if missing := limits(campaign):
        yield missing


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    return "".join(f"\\{one}" if one in "\\|*_<>[]`" else one for one in text.replace("\n", " "))
