"""The matrix on a terminal: a table if it fits the width, else one line per cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from repot.chaos.report.matrix import CellStatus
from repot.sanitize import readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from repot.chaos.report.matrix import CellSummary, Column, Matrix
    from repot.chaos.report.result import Cell

_ANY_WIDTH = 10_000
_STYLES = {
    CellStatus.GOOD: "green",
    CellStatus.NOTE: "yellow",
    CellStatus.BAD: "red",
    CellStatus.FAILED: "bold magenta",
    CellStatus.INAPPLICABLE: "dim",
    CellStatus.UNMEASURED: "dim",
}


def table_of(first: str, *heads: str) -> Table:
    """Return a table without rows; what is in its first column, a name, is on one line."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(first, no_wrap=True)
    for head in heads:
        table.add_column(head)
    return table


def side_by_side(laid_out: Matrix) -> Table:
    """Return a table with a row for each scenario; no column is narrower than its longest word."""
    table = table_of("scenario")
    for column in laid_out.columns:
        head = Text(f"{readable(column.profile.name)}\n{column.guarded}")
        table.add_column(head, min_width=_longest_word(laid_out, column))
    for row in laid_out.rows:
        summaries = laid_out.row(row)
        table.add_row(readable(row.name), *(_verdict(summary.status, _text(summary)) for summary in summaries))
    return table


def width(table: Table) -> int:
    """Return the width of a table without a cut word. A console measures at most its own width."""
    console = Console(width=_ANY_WIDTH)
    return Measurement.get(console, console.options, table).minimum


def cell_by_cell(laid_out: Matrix) -> Iterator[Text | Table]:
    """Yield the name of each scenario, then the lines of its cells."""
    for row in laid_out.rows:
        yield Text(readable(row.name), style="bold")
        known = (summary for summary in laid_out.row(row) if summary.cell in laid_out.summaries)
        yield lines((summary.cell, summary.status, _text(summary)) for summary in known)


def lines(cells: Iterable[tuple[Cell, CellStatus, str]]) -> Table:
    """Return one line per cell; names are never cut, verdicts wrap between words."""
    table = Table(box=None, show_header=False, pad_edge=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for cell, status, text in cells:
        table.add_row(readable(cell.profile), "guarded" if cell.guard else "plain", _verdict(status, text))
    return table


def legend(laid_out: Matrix) -> str:
    """Return the meaning of the symbols in use."""
    used = {summary.status for row in laid_out.rows for summary in laid_out.row(row)}
    symbols = [f"{how.symbol} {how.meaning(laid_out.effects)}" for how in CellStatus if how in used]
    return "; ".join((*symbols, "≠ not as expected"))


def _longest_word(laid_out: Matrix, column: Column) -> int:
    """Return the width of a column; a status symbol belongs to the first word."""
    summaries = (laid_out.summary(row, column) for row in laid_out.rows)
    texts = [_verdict(summary.status, _text(summary)).plain.replace(" ", "_", 1) for summary in summaries]
    return max(cell_len(word) for text in (column.profile.name, column.guarded, *texts) for word in text.split())


def _text(summary: CellSummary) -> str:
    return summary.text + (" ≠" if summary.unexpected else "")


def _verdict(status: CellStatus, text: str) -> Text:
    return Text(f"{status.symbol} {text}".rstrip(), style=_STYLES[status])
