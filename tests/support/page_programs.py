"""Pages that are programs: `scripts/run_page.py` on a tutorial, and what it leaves."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from repot.config import inherited_environment
from repot.waiting import wait_until
from support.commands import processes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SCRIPT = "scripts/run_page.py"

#: Seconds; the script ends each step that hangs earlier, and says which.
HANGS_AFTER_S = 560


@contextmanager
def running(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a page in a directory, as `make` does."""
    environment = {name: value for name, value in inherited_environment(without=()).items() if name == "PATH"}
    environment |= {"TMPDIR": str(directory), "HOME": str(directory)}
    with subprocess.Popen(
        [sys.executable, str(ROOT / SCRIPT), *arguments],
        env=environment,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def require_nothing_left(directory: Path, *files: str) -> None:
    wait_until(lambda: not processes_of(directory), within_s=20, what="every process is gone")
    left = [path.name for path in directory.iterdir() if not path.name.startswith(".")]
    assert sorted(files) == sorted(left)


def typed_on(page: str) -> list[str]:
    """Return the commands of a page's blocks, without the script's own parser."""
    found = re.findall(r"(?m)^```sh(?! file=)[^\n]*\n((?:(?!```).*\n)*)```$", page)
    lines = "".join(found).replace("\\\n", " ").splitlines()
    return [re.sub(r" +", " ", line) for line in lines]


def typed_by(shown: str) -> list[str]:
    """Return the commands that the script shows as typed."""
    return re.findall(r"(?m)^  (?:\[\w+\] )?\$ (.*)$", shown)
