"""Processes that do not outlive their caller.

Process supervisors of the registry (mirakuru, supervisor, pytest-services) stop
what they started when they are asked to, but not when the caller is killed with
SIGKILL; `prctl(PR_SET_PDEATHSIG)` does, on Linux alone and for one process alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from repot.errors import ServerFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_GUARD = Path(__file__).with_name("guard.py")
_STOP_WITHIN_S = 20


class GuardedFolder:
    """A new folder, deleted at `close`, or when this process dies; in either case after the processes at home in it.

    Attributes:
        path: where it is.
        epmd_port: of the port mapper that ends with it; None without one.
        lifeline: a descriptor; the folder stays while any process holds it open.
    """

    def __init__(self, prefix: str, *, epmd_port: int | None = None) -> None:
        """Make it."""
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self.epmd_port = epmd_port
        order = {"command": None, "remove": str(self.path), "epmd_port": epmd_port}
        self._guard = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-I", "-S", str(_GUARD), json.dumps(order)], stdin=subprocess.PIPE, start_new_session=True
        )
        assert self._guard.stdin is not None
        self.lifeline = self._guard.stdin.fileno()

    def close(self, *, within_s: float = _STOP_WITHIN_S) -> None:
        """Delete it, once the processes at home in it have ended.

        Raises:
            ServerFailed: one has not; the folder goes when it does.
        """
        if self._guard.stdin:
            self._guard.stdin.close()
        try:
            self._guard.wait(timeout=within_s)
        except subprocess.TimeoutExpired as error:
            message = f"{self.path} was not deleted within {within_s:g} s"
            raise ServerFailed(message, hint="A server in it has not ended.") from error

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


class GuardedProcess:
    """A running command, ended with everything it started at `stop`, or when this process dies.

    Attributes:
        pid: of the command itself, not of its guard.
        log: the file that takes what it prints.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        folder: Path | None = None,
        remove: Path | None = None,
        epmd_port: int | None = None,
        home: GuardedFolder | None = None,
    ) -> None:
        """Start `command` in `folder`; delete `remove` once it has ended. A `home` stays at least as long as it."""
        self.log = log
        self._last_words = ""
        self._standstills = 0
        order = {
            "command": list(command),
            "log": str(log),
            "remove": str(remove) if remove else None,
            "epmd_port": epmd_port,
        }
        self._guard = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-I", "-S", str(_GUARD), json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,
            pass_fds=(home.lifeline,) if home else (),
        )
        first_line = self._guard.stdout.readline() if self._guard.stdout else b""
        if not first_line:
            _, errors = self._guard.communicate()
            reason = errors.decode().strip().rpartition("\n")[2]
            message = f"{command[0]} could not be started: {reason}"
            raise ServerFailed(message)
        self.pid = int(first_line)

    @property
    def exit_code(self) -> int | None:
        """None while the command runs; 128 + N when signal N ended it, as in a shell."""
        return self._guard.poll()

    def log_tail(self, lines: int = 15) -> str:
        """The last lines it printed."""
        if self.log.exists():
            self._last_words = self.log.read_text(errors="replace")
        elif not self._last_words and self.exit_code is not None and self._guard.stderr:
            self._last_words = self._guard.stderr.read().decode(errors="replace")
        return "\n".join(self._last_words.splitlines()[-lines:])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command alone."""
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop the command's own process, not its children, while a `with` lasts; of several, until the last."""
        self._standstills += 1
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._standstills -= 1
            if not self._standstills:
                self.signal(signal.SIGCONT)

    @contextmanager
    def all_frozen(self) -> Iterator[None]:
        """Stop the command with its children for the duration of a `with`."""
        self._signal_group(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal_group(signal.SIGCONT)

    def _signal_group(self, number: int) -> None:
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def stop(self) -> None:
        """End the command and all it started, at once; do nothing if it has ended."""
        if self._guard.stdin:
            with suppress(BrokenPipeError):
                self._guard.stdin.close()
        try:
            self._guard.wait(timeout=_STOP_WITHIN_S)
        except subprocess.TimeoutExpired as error:
            self._guard.kill()
            message = f"process {self.pid} did not end within {_STOP_WITHIN_S} s"
            raise ServerFailed(message, hint=f"kill -9 -- -{self.pid} ends it with all it started.") from error
        for stream in (self._guard.stdout, self._guard.stderr):
            if stream:
                stream.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.stop()
