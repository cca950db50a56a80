"""`repot` as a process of its own, and everything that it started."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import psutil

from repot.config.environment import inherited_environment
from support import forked

if TYPE_CHECKING:
    from pathlib import Path


def start(directory: Path, *arguments: str, **more: str) -> subprocess.Popen[str]:
    """Start `repot` in a directory that is also the place of its temporary files: its processes are found by it.

    It has no variables but PATH and `more`.
    """
    environment = {name: value for name, value in inherited_environment(without=()).items() if name == "PATH"}
    environment |= {"TMPDIR": str(directory), "HOME": str(directory)} | more
    command = [sys.executable, "-m", "repot", *arguments]
    return forked.start(
        command, env=environment, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def processes_of(directory: Path) -> list[str]:
    """Return the command line of each process whose temporary files are in this directory."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and str(directory) in str(process.environ()):
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found
