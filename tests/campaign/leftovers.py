"""What a group left behind: processes by their TMPDIR, and what they put there."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from repot.errors import DeadlineExceeded
from repot.waiting import wait_until
from support.leftovers import ours

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Seconds; a reaper waits for the end of its caller and then for that of its server.
_GONE_WITHIN_S = 20

#: What stays on purpose: pytest's last runs and repot's failed experiments, for people to look at; the directory of a
#: deployment's status files, for its next worker. And what a process that a test kills cannot remove: its pool's.
_KEPT = ("pytest", "repot-failed-", f"repot-{os.getuid()}-", "pymp-")


class TemporaryFiles:
    """A directory for all temporary files of a group."""

    def __init__(self, path: Path) -> None:
        """Take a directory that exists."""
        self.path = path

    def leftovers(self) -> list[str]:
        """Return each process and file that is still there after a moment; the processes are ended."""
        try:
            wait_until(lambda: not self._found(), within_s=_GONE_WITHIN_S, what="nothing is left")
        except DeadlineExceeded:
            found = self._found()
            for one in ours([str(self.path)]):
                with suppress(psutil.NoSuchProcess):
                    one.kill()
            return found
        return []

    def _found(self) -> list[str]:
        processes = [f"process {one.pid}: {_command(one)}" for one in ours([str(self.path)])]
        files = [f"file {one}" for one in self.path.iterdir() if not one.name.startswith(_KEPT)]
        return processes + files


def _remove_projects(path: Path) -> None:
    """Remove what Docker Compose runs from files below a directory, with its volumes and networks."""
    form = '{{.Label "com.docker.compose.project"}} {{.Label "com.docker.compose.project.config_files"}}'
    if shutil.which("docker") is None:
        return
    asked = subprocess.run(["docker", "ps", "--all", "--format", form], capture_output=True, text=True, check=False)
    for project in {line.split()[0] for line in asked.stdout.splitlines() if f"{path}/" in line}:
        down = ["docker", "compose", "--project-name", project, "down", "--volumes", "--timeout", "10"]
        subprocess.run(down, check=False)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return "it has ended meanwhile"


@contextmanager
def temporary_files() -> Iterator[TemporaryFiles]:
    """Make a directory, and remove it at the end."""
    # a short name: the paths of sockets in it have a limit of 107 characters
    path = Path(tempfile.mkdtemp(prefix="r-"))
    # databases run as users of their own, below it
    path.chmod(0o711)
    try:
        yield TemporaryFiles(path)
    except KeyboardInterrupt:
        # processes end with those that started them, containers do not
        _remove_projects(path)
        raise
    finally:
        shutil.rmtree(path, ignore_errors=True)
