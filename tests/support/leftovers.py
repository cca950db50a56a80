"""What servers of a test have left behind."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import psutil

from repot.testbed.reaper import end_session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def run_to_its_end(
    command: Sequence[str], environment: Mapping[str, str], within_s: float, directory: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command; also where it takes too long, what it started is gone afterwards."""
    with subprocess.Popen(
        command,
        env=dict(environment),
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, errors = process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired as error:
            error.add_note(f"It printed:\n{(error.output or b'').decode()}{(error.stderr or b'').decode()}")
            raise
        finally:
            end_session(process.pid)
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


def ours(directories: list[str]) -> list[psutil.Process]:
    """Processes whose environment, command or directory points into one of these directories.

    Erlang's port mapper leaves every group and session, but not its environment.
    """
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            known = [*process.cmdline(), *process.environ().values(), process.cwd()]
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if any(directory in text for directory in directories for text in known):
            found.append(process)
    return found
