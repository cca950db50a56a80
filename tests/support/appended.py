"""Files to which other processes append lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def appended_lines(path: Path) -> list[str]:
    """Return the lines that are written; none of a file that does not exist yet.

    The last line is left out until its end is there: a reader sees one append in two parts where it crosses a page
    of the file (4096 bytes).
    """
    if not path.exists():
        return []
    return path.read_text().split("\n")[:-1]
