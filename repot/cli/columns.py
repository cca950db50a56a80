"""Plain columns for commands that must start quickly: one line per row, nothing cut, so that `grep` works."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.sanitize import readable

if TYPE_CHECKING:
    from collections.abc import Iterable


def columns(rows: Iterable[tuple[str, ...]], heads: tuple[str, ...]) -> list[str]:
    """Return the lines of a table, the heads first; secrets in cells are masked, and control characters escaped."""
    listed = [heads, *(tuple(map(readable, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*listed, strict=True)]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in listed]
