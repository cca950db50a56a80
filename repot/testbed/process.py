"""Processes and directories that do not outlive their caller.

Process supervisors from the package index (mirakuru, supervisor, pytest-services) stop what they started when they are
asked to, but not when the caller is killed with SIGKILL; `prctl(PR_SET_PDEATHSIG)` does, only on Linux and only for one
process. Here a process of its own, the reaper (`reaper.py`), waits for the caller's end.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from repot.errors import ServerFailed
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_REAPER = Path(__file__).with_name("reaper.py")
_STOP_WITHIN_S = 20
#: A thread that is not stopped, not traced and not dead; its name, in parentheses, may hold anything (proc(5)).
_RUNS = re.compile(r"\) [^TtZXx] [^)]*\Z")


class ReapedDirectory:
    """A new directory, deleted at `close` or when this process dies, after the processes that live in it.

    Attributes:
        path: the directory.
        epmd_port: the port of the Erlang port mapper that ends with it; None without one.
        lifeline: a file descriptor; the directory stays while any process holds it open.
    """

    def __init__(self, prefix: str, *, epmd_port: int | None = None) -> None:
        """Create it."""
        self.path = Path(tempfile.gettempdir(), f"{prefix}{secrets.token_hex(6)}")
        self.epmd_port = epmd_port
        order = {"remove": str(self.path), "epmd_port": epmd_port}
        self._reaper = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-I", "-S", str(_REAPER), json.dumps(order)], stdin=subprocess.PIPE, start_new_session=True
        )
        assert self._reaper.stdin is not None
        self.lifeline = self._reaper.stdin.fileno()
        # after the reaper has started: who is killed in between leaves no directory
        self.path.mkdir(mode=0o700)

    def close(self, *, within_s: float = _STOP_WITHIN_S) -> None:
        """Delete it, once the processes that live in it have ended.

        Raises:
            ServerFailed: one still runs; the directory is deleted when it ends.
        """
        if self._reaper.stdin:
            self._reaper.stdin.close()
        try:
            self._reaper.wait(timeout=within_s)
        except subprocess.TimeoutExpired as error:
            message = f"{self.path} was not deleted within {within_s:g} s"
            raise ServerFailed(message, hint="A server in it has not ended.") from error

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


class ReapedProcess:
    """A running command, ended with everything it started at `stop`, or when this process dies.

    Attributes:
        pid: of the command itself, not of its reaper.
        log: the file with its output.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        directory: Path | None = None,
        home: ReapedDirectory | None = None,
    ) -> None:
        """Start `command` in `directory`. A `home` is deleted after it has ended."""
        self.log = log
        self._last_lines = ""
        self._freezes = 0
        order = {"command": list(command), "log": str(log)}
        self._reaper = start_reaper(order, environment, directory, (home.lifeline,) if home else ())
        first_line = self._reaper.stdout.readline() if self._reaper.stdout else b""
        if not first_line:
            _, errors = self._reaper.communicate()
            reason = errors.decode().strip().rpartition("\n")[2]
            message = f"{command[0]} could not be started: {reason}"
            raise ServerFailed(message)
        self.pid = int(first_line)

    @property
    def exit_code(self) -> int | None:
        """Return the exit code; None while the command runs, 128 + N if signal N ended it, as in a shell."""
        return self._reaper.poll()

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines that it printed."""
        if self.log.exists():
            self._last_lines = self.log.read_text(errors="replace")
        elif not self._last_lines and self.exit_code is not None and self._reaper.stderr:
            self._last_lines = self._reaper.stderr.read().decode(errors="replace")
        return "\n".join(self._last_lines.splitlines()[-lines:])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command, not to its children."""
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop the command's process, not its children, for the duration of a `with`; they may be nested.

        Raises:
            DeadlineExceeded: a thread of it still runs.
        """
        self._freezes += 1
        self.signal(signal.SIGSTOP)
        try:
            await_stopped([self.pid])
            yield
        finally:
            self._freezes -= 1
            if not self._freezes:
                self.signal(signal.SIGCONT)

    @contextmanager
    def all_frozen(self) -> Iterator[None]:
        """Stop the command with its children for the duration of a `with`.

        Raises:
            DeadlineExceeded: a thread of one still runs.
        """
        self._signal_group(signal.SIGSTOP)
        try:
            await_stopped(_group(self.pid))
            yield
        finally:
            self._signal_group(signal.SIGCONT)

    def _signal_group(self, number: int) -> None:
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def stop(self) -> None:
        """Kill the command and everything that it started; do nothing if it has ended."""
        if self._reaper.stdin:
            with suppress(BrokenPipeError):
                self._reaper.stdin.close()
        try:
            self._reaper.wait(timeout=_STOP_WITHIN_S)
        except subprocess.TimeoutExpired as error:
            self._reaper.kill()
            message = f"process {self.pid} did not end within {_STOP_WITHIN_S} s"
            raise ServerFailed(message, hint=f"kill -9 -- -{self.pid} ends it with all it started.") from error
        for stream in (self._reaper.stdout, self._reaper.stderr):
            if stream:
                stream.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.stop()


def start_reaper(
    order: Mapping[str, Any], environment: Mapping[str, str], directory: Path | None, kept: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Start the reaper of a command; its command and it itself have this environment, and it keeps descriptors open."""
    return subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-I", "-S", str(_REAPER), json.dumps(order)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
        cwd=directory,
        start_new_session=True,
        pass_fds=kept,
    )


def await_stopped(pids: Sequence[int]) -> None:
    """Wait until no thread runs: `kill` returns before a thread on another processor has stopped."""
    wait_until(
        lambda: not any(_RUNS.search(stat) for pid in pids for stat in _thread_states(pid)),
        within_s=_STOP_WITHIN_S,
        what=f"SIGSTOP stops the processes {', '.join(map(str, pids))}",
        poll_s=0.001,
    )


def _thread_states(pid: int) -> Iterator[str]:
    """Yield `/proc/PID/task/TID/stat` of each thread; nothing for a process that has ended."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            yield stat.read_text(errors="replace")


def _group(leader: int) -> list[int]:
    """Return the processes of a process group."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError):
            if os.getpgid(int(one.name)) == leader:
                found.append(int(one.name))
    return found
