"""Text of strangers on a terminal: names of tasks, ids and exceptions are written by whoever sends messages."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Controls (escape sequences, line breaks), format characters (which turn the direction of what follows, or are not to
#: be seen), halves of surrogate pairs, which no terminal's encoding has, and the two separators that break lines.
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def printable(text: str, *, lines: bool = False) -> str:
    r"""The text with whatever steers a terminal written out, as `\n` or `\x1b`; line breaks stay if `lines` says so."""
    return "".join(
        one if (lines and one == "\n") or unicodedata.category(one) not in _UNSEEN else _escaped(one) for one in text
    )


def columns(rows: Iterable[tuple[str, ...]], heads: tuple[str, ...]) -> list[str]:
    """Columns that stay greppable: a line a row, the heads first, nothing cut and nothing that steers a terminal."""
    listed = [heads, *(tuple(map(printable, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*listed, strict=True)]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in listed]


def _escaped(one: str) -> str:
    return one.encode("unicode_escape").decode("ascii")
