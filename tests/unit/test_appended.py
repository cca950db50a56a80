"""Tests of reading a file while others append to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.appended import appended_lines

if TYPE_CHECKING:
    from pathlib import Path


def test_only_whole_lines_are_read(tmp_path: Path) -> None:
    """A part of a line waits for its end."""
    path = tmp_path / "lines"
    assert appended_lines(path) == []
    for written, read in (("", []), ("a", []), ("a\n", ["a"]), ("a\n\nb", ["a", ""]), ("a\nb\n", ["a", "b"])):
        path.write_text(written)
        assert read == appended_lines(path)
