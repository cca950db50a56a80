"""What servers of a test have left behind."""

from __future__ import annotations

import psutil


def ours(folders: list[str]) -> list[psutil.Process]:
    """Processes whose environment, command or folder points into one of these folders.

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
        if any(folder in text for folder in folders for text in known):
            found.append(process)
    return found
