"""Run one command, and kill it with everything that it started when the caller is gone.

`repot.testbed.process` starts this file as a program with the standard library alone. The caller holds the other end of
standard input: end of file means stop, and the kernel also sends it when the caller was killed with SIGKILL.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from threading import Thread

TYPE_CHECKING = False  # importing typing would double the start time
if TYPE_CHECKING:
    from collections.abc import Callable

#: Fits into a pipe without a reader.
LOG_TAIL_BYTES = 4096

EPMD_WITHIN_S = 10
REMOVED_WITHIN_S = 5
ENDED_WITHIN_S = 5


def main() -> int:
    """Run `{"command", "log"}`, given as JSON in the first argument.

    `{"remove", "epmd_port"}` keeps a directory: wait until no process holds the other end, and remove it.
    """
    order = json.loads(sys.argv[1])
    if "remove" in order:
        until_the_caller_is_gone()
        clean_up(order["epmd_port"], order["remove"])
        return 0
    with open(order["log"], "ab") as log:  # noqa: PTH123 - importing pathlib would double the start time
        child = subprocess.Popen(  # noqa: S603 - the caller's own command
            order["command"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    return watch(child.pid, child.wait, order["log"])


def watch(leader: int, wait: Callable[[], int], log: str) -> int:
    """Print the id of a session's leader, end the session with it or with the caller, and return the exit code."""

    def end() -> None:
        end_session(leader)

    def end_with_caller() -> None:
        until_the_caller_is_gone()
        end()

    signal.signal(signal.SIGTERM, lambda *_: end())
    Thread(target=end_with_caller, daemon=True).start()
    with suppress(BrokenPipeError):  # the caller is gone already, and with it its end of standard input
        print(leader, flush=True)  # noqa: T201 - the caller reads it
    code = wait()
    end()
    show_end_of(log)
    return code if code >= 0 else 128 - code


def end_session(leader: int) -> None:
    """Kill a session's processes: its leader's group, and groups of their own, as supervisord gives its programs."""
    # the group first, and alone where there is no /proc; macOS refuses one whose processes are all gone but not reaped
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    # until no member is left: one may have been forking; the deadline is for one that cannot be killed
    deadline = time.monotonic() + ENDED_WITHIN_S
    while (members := members_of(leader)) and time.monotonic() < deadline:
        for pid in members:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def members_of(session: int) -> list[int]:
    """Return the running processes of a session, by proc(5); nothing where there is no /proc."""
    found = []
    with suppress(FileNotFoundError):
        for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - as for the log
            # gone meanwhile
            with suppress(OSError), open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
                # behind the name, which may hold anything: state, parent, group, session
                state, _, _, its_session = stat.read().rpartition(")")[2].split()[:4]
                if its_session == str(session) and state not in "ZX":
                    found.append(int(pid))
    return found


def until_the_caller_is_gone() -> None:
    """Wait for the end of standard input."""
    # not sys.stdin: its lock, held by a thread, would abort the interpreter at its exit
    while os.read(0, 1024):
        pass


def clean_up(epmd_port: int | None, directory: str) -> None:
    """End the port mapper, if there is one, and remove the directory."""
    if epmd_port:
        end_epmd(epmd_port)
    remove(directory)


def remove(directory: str) -> None:
    """Remove a directory in which processes that other reapers are ending may still create files."""
    deadline = time.monotonic() + REMOVED_WITHIN_S
    while os.path.exists(directory) and time.monotonic() < deadline:  # noqa: PTH110 - as above
        shutil.rmtree(directory, ignore_errors=True)
        time.sleep(0.02)


def show_end_of(log: str) -> None:
    """Print the end of the command's output: the file may be deleted next."""
    with suppress(OSError), open(log, "rb") as file:  # noqa: PTH123
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
        sys.stderr.buffer.write(file.read())
        sys.stderr.flush()


def end_epmd(port: int) -> None:
    """Ask Erlang's port mapper on a private port to exit; it left the group to become a daemon.

    KILL_REQ of the EPMD protocol, a length of 1 and the character k, is answered NO
    while a node is still registered: one that was killed is, until the kernel has
    closed its connection.
    """
    deadline = time.monotonic() + EPMD_WITHIN_S
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
                connection.sendall(b"\x00\x01k")
                if connection.recv(2) == b"OK":
                    return
        except TimeoutError:  # it may be there, on a machine that stands still
            continue
        except OSError:
            return
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
