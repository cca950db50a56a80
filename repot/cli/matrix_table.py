"""The matrix of a campaign on a terminal: side by side where it fits, else a line for each cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from repot.chaos.matrix import Tone
from repot.cli.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from repot.chaos.matrix import Column, Matrix, Square
    from repot.chaos.result import Cell

_ANY_WIDTH = 10_000
_STYLES = {
    Tone.GOOD: "green",
    Tone.NOTE: "yellow",
    Tone.BAD: "red",
    Tone.FAILED: "bold magenta",
    Tone.INAPPLICABLE: "dim",
    Tone.UNMEASURED: "dim",
}


def side_by_side(laid_out: Matrix) -> Table:
    """A row for each scenario; no column is narrower than its longest word."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("scenario", no_wrap=True)
    for column in laid_out.columns:
        head = Text(f"{printable(column.profile.name)}\n{column.guarded}")
        table.add_column(head, min_width=_longest_word(laid_out, column))
    for row in laid_out.rows:
        squares = laid_out.row(row)
        table.add_row(printable(row.name), *(_verdict(square.tone, _words(square)) for square in squares))
    return table


def width(table: Table) -> int:
    """How wide it is without a word cut; a console measures no wider than it is itself."""
    console = Console(width=_ANY_WIDTH)
    return Measurement.get(console, console.options, table).minimum


def cell_by_cell(laid_out: Matrix) -> Iterator[Text | Table]:
    """The cells of each scenario under its name."""
    for row in laid_out.rows:
        yield Text(printable(row.name), style="bold")
        known = (square for square in laid_out.row(row) if square.cell in laid_out.squares)
        yield lines((square.cell, square.tone, _words(square)) for square in known)


def lines(cells: Iterable[tuple[Cell, Tone, str]]) -> Table:
    """A line for each: names whole, and the words wrapped between two of them if they must be."""
    table = Table(box=None, show_header=False, pad_edge=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for cell, how, words in cells:
        table.add_row(printable(cell.profile), "guarded" if cell.guard else "plain", _verdict(how, words))
    return table


def legend(laid_out: Matrix) -> str:
    """The signs that were used, and what they mean."""
    used = {square.tone for row in laid_out.rows for square in laid_out.row(row)}
    signs = [f"{how.sign} {how.meaning}" for how in Tone if how in used]
    return "; ".join((*signs, "≠ not as expected"))


def _longest_word(laid_out: Matrix, column: Column) -> int:
    """The sign of a square stands beside its first word."""
    squares = (laid_out.square(row, column) for row in laid_out.rows)
    texts = [_verdict(square.tone, _words(square)).plain.replace(" ", "_", 1) for square in squares]
    return max(cell_len(word) for text in (column.profile.name, column.guarded, *texts) for word in text.split())


def _words(square: Square) -> str:
    return square.words + (" ≠" if square.unexpected else "")


def _verdict(how: Tone, words: str) -> Text:
    return Text(f"{how.sign} {words}".rstrip(), style=_STYLES[how])
