"""Plain columns for commands that must start quickly: one line per row, nothing cut, so that `grep` works.

On a terminal that is narrower than the table, each row is a block of lines with the heads before the cells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.cli.output import echo, echo_line, terminal_width
from repot.sanitize import readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: Columns before the lines of a table.
_GAP = "  "


def columns(rows: Iterable[tuple[str, ...]], heads: tuple[str, ...]) -> list[str]:
    """Return the lines of a table, the heads first; secrets in cells are masked, and control characters escaped."""
    listed = [heads, *(tuple(map(readable, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*listed, strict=True)]
    return [_GAP.join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in listed]


def print_table(rows: Sequence[tuple[str, ...]], heads: tuple[str, ...], indent: str = "") -> None:
    """Print a table to standard output: a line per row, or a block per row where a terminal is too narrow for that."""
    lines, width = columns(rows, heads), terminal_width()
    if width is None or max(map(len, lines)) + len(indent) <= width:
        for number, line in enumerate(lines):
            echo(f"{indent}{line}", bold=not number)
        return
    for row in rows:
        for number, line in enumerate(_block(tuple(map(readable, row)), heads)):
            echo(f"{indent}{line}", bold=not number)


def print_fields(fields: Iterable[tuple[str, object]], width: int) -> None:
    """Print a line for each field: its label, in so many columns, and its value."""
    for label, value in fields:
        echo_line(f"{label:{width}} {value}")


def _block(row: tuple[str, ...], heads: tuple[str, ...]) -> Iterator[str]:
    """Yield a line per cell that is not empty; the first cell names the row."""
    widest = max(map(len, heads))
    for number, (head, cell) in enumerate(zip(heads, row, strict=True)):
        if cell or not number:
            yield f"{'' if not number else _GAP}{head:{widest}}{_GAP}{cell}"
