"""Write the results as Markdown, for documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.chaos.report.conclusions import conclusions, limits
from repot.chaos.report.matrix import CellStatus, CellSummary, Matrix, counts, matrix
from repot.sanitize import sanitize_report

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from repot.chaos.report.result import Campaign


def as_markdown(campaign: Campaign) -> str:
    """Return the matrix, its conclusions, and how it was measured."""
    shown = sanitize_report(campaign)
    table = matrix(shown)
    measure = [_escaped(shown.measure)] if shown.measure else []
    parts = [
        "# The fault matrix",
        f"{_total(table)} {_KEY}",
        *measure,
        "\n".join(_table(table)),
        *_conclusions(shown),
        "## How it was measured",
        "\n".join(_measured(shown)),
    ]
    return "\n\n".join(parts) + "\n"


def verdicts_and_conclusions(campaign: Campaign) -> str:
    """Return the table and what follows from it, without headings of a page of its own: for a page that has others."""
    shown = sanitize_report(campaign)
    return "\n\n".join(("\n".join(_table(matrix(shown))), *_sentences(shown)))


_KEY = "**Bold**: not acceptable. ≠: not the expected verdict. n/a: not applicable. Blank: not run."


def _total(table: Matrix) -> str:
    total = counts(table)
    return f"{total.cells} cells, {total.runs} runs, {total.unexpected} cells not as expected."


def _measured(campaign: Campaign) -> Iterator[str]:
    versions = ", ".join(f"{name} {number}" for name, number in campaign.versions.items())
    yield f"Measured {campaign.created} with {_escaped(versions)}; seed {campaign.seed}."
    if campaign.app:
        yield f"The task is `{campaign.app}`."
    if campaign.scaled:
        scaled = ", ".join(f"{name} {value:g} s" for name, value in campaign.scaled.items())
        yield f"Times are scaled from minutes to seconds: {_escaped(scaled)}."
    for text in campaign.untested:
        yield f"Not tested on your settings: {_escaped(text)}."


def _table(table: Matrix) -> Iterator[str]:
    yield _line(("scenario", *(column.name for column in table.columns)))
    yield _line(["---"] * (len(table.columns) + 1))
    for row in table.rows:
        yield _line((row.name, *map(_text, table.row(row))))


def _text(summary: CellSummary) -> str:
    text = _escaped(summary.text)
    mark = " ≠" if summary.unexpected else ""
    return f"**{text}**{mark}" if summary.status is CellStatus.BAD else f"{text}{mark}"


def _conclusions(campaign: Campaign) -> Iterator[str]:
    yield from _sentences(campaign)
    if missing := limits(campaign):
        yield missing


def _sentences(campaign: Campaign) -> Iterator[str]:
    kind = None
    for one in conclusions(campaign):
        if one.kind is not kind:
            kind = one.kind
            yield f"## {kind.value}"
        yield _escaped(one.text)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    return "".join(f"\\{one}" if one in "\\|*_<>[]`" else one for one in text.replace("\n", " "))
