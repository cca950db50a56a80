"""A small disk of its own that another file fills."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class SmallDisk:
    """A file system in memory with so many bytes."""

    def __init__(self, path: Path) -> None:
        """Use what is mounted there."""
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        """Fill it to the last block with a file of another program's."""
        with self._filler.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"\x00" * 4096)

    def empty(self) -> None:
        """Delete that file."""
        self._filler.unlink()


@contextmanager
def small_disk(path: Path, size: str = "2m") -> Iterator[SmallDisk]:
    """Mount one, where that is allowed."""
    path.mkdir()
    mounted = (
        os.geteuid() == 0
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", path], check=False, capture_output=True
        ).returncode
    )
    if not mounted:
        pytest.skip("only root may mount a file system")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", path], check=True)
