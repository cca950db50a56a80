"""Workers and commands without their second of imports: forked by a process that has imported everything.

For tests whose subject is not the start. `start` and `run` do what `subprocess.Popen` and `subprocess.run` do; what is
not this interpreter's program is started as usual, as is one that needs an interpreter of its own.
"""

from __future__ import annotations

import atexit
import inspect
import json
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import pytest

from repot.config import inherited_environment
from repot.testbed import process as reaped
from repot.testbed.process import ReapedDirectory
from support import fork_server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_PROGRAM = fork_server.__file__
#: The variable that names the process of a run which forks.
SHARED = "REPOT_TESTS_FORK_SERVER"
_HERE = os.path.dirname(sys.executable)  # noqa: PTH120
_OWN_SCRIPTS = {os.path.join(_HERE, name) for name in ("celery", "repot")}  # noqa: PTH118
#: Variables of the interpreter that a forked process follows; any other needs an interpreter of its own.
_FOLLOWED = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"}
#: Pools that patch the interpreter before anything is imported.
_PATCHING = ("gevent", "eventlet")


class _ForkServer:
    """The process that forks: that of the run, or one of this process from its first use on."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        if connected := _connected():
            self._orders, found = connected
        else:
            self._process, self._orders = _started()
            found = _imported(self._orders)
        self._places: dict[str, str] = found["places"]
        self._own_path = {os.path.realpath(path) for path in found["path"]}
        self._interpreter: dict[str, str] = found["interpreter"]

    def close(self) -> None:
        """End what it has forked for this process and has no reaper, and the process itself if it is of this one."""
        self._orders.close()
        if self._process:
            self._process.wait()

    def can_run(self, command: Sequence[str], environment: Mapping[str, str], directory: str) -> bool:
        """Return whether a forked process would do what a new interpreter does; of a program of this interpreter."""
        program, *rest = map(os.fspath, command)
        if program in _OWN_SCRIPTS:
            first = _HERE
        elif not rest or (rest[0].startswith("-") and rest[0] not in {"-m", "-c"}):
            return False
        else:
            first = directory if rest[0] in {"-m", "-c"} else os.path.dirname(os.path.join(directory, rest[0]))  # noqa: PTH118, PTH120
        if any(name in word for name in _PATCHING for word in rest):
            return False
        ruling = {name: value for name, value in environment.items() if name.startswith("PYTHON")}
        if any(name not in _FOLLOWED and self._interpreter.get(name) != value for name, value in ruling.items()):
            return False
        added = environment.get("PYTHONPATH", "").split(os.pathsep)
        return not any(self._hides(os.path.join(directory, path)) for path in (first, *filter(None, added)))  # noqa: PTH118

    def _hides(self, path: str) -> bool:
        """Return whether a directory on the path has other modules than those that are imported already."""
        path = os.path.realpath(path)
        if path in self._own_path:
            return False
        return any(self._places[name] != path for name in _modules(path) if name in self._places)

    def order(
        self, order: Mapping[str, Any], standard: Sequence[int], kept: Sequence[int] = ()
    ) -> tuple[int, socket.socket]:
        """Fork; return the id of the process, and the socket that will hold its exit code."""
        answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._lock:
            socket.send_fds(self._orders, [json.dumps(order).encode()], [*standard, theirs.fileno(), *kept])
        answer = answers.recv(32)
        if not answer.startswith(fork_server.BEGUN):
            answers.close()
            message = f"{order['command']} could not be forked in {order['directory']}"
            raise OSError(message)
        return int(answer.removeprefix(fork_server.BEGUN)), answers


def _started(listening: socket.socket | None = None) -> tuple[subprocess.Popen[bytes], socket.socket]:
    orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    orders.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, fork_server.ORDER_BYTES)
    environment = inherited_environment(without=("WORKER_", "CELERY_", "PYTHONPATH")) | {"ROOM": fork_server.ROOM}
    with theirs:
        given = [one.fileno() for one in (theirs, listening) if one]
        process = subprocess.Popen(
            [sys.executable, _PROGRAM, fork_server.ROOM, *map(str, given)],
            env=environment, stdin=subprocess.DEVNULL, pass_fds=given,
        )  # fmt: skip
    return process, orders


def _connected() -> tuple[socket.socket, dict[str, Any]] | None:
    """Return a connection to the process that forks for the run, and what that has imported; None if it cannot."""
    path = inherited_environment(without=()).get(SHARED)
    if path is None:
        return None
    orders = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    orders.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, fork_server.ORDER_BYTES)
    try:
        orders.connect(path)
    except OSError:  # its run has ended
        orders.close()
        return None
    found = _imported(orders)
    if found["program"] == [sys.executable, _PROGRAM]:
        return orders, found
    orders.close()
    return None


def _imported(orders: socket.socket) -> dict[str, Any]:
    told = orders.recv(fork_server.ORDER_BYTES)
    assert told, "the process that forks could not import everything"
    found: dict[str, Any] = json.loads(told)
    return found


@contextmanager
def shared_by_a_run() -> Iterator[dict[str, str]]:
    """Start one process that forks for all processes of a run; yield the variables by which they find it; on Linux."""
    if sys.platform != "linux":
        yield {}
        return
    with ReapedDirectory("repot-fork-") as home, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        path = str(home.path / "socket")
        listening.bind(path)
        listening.listen()
        process, orders = _started(listening)
        with process, orders:
            yield {SHARED: path}


def _modules(path: str) -> set[str]:
    """Return the names that Python finds in a directory of its path."""
    try:
        names = os.listdir(path)  # noqa: PTH208
    except OSError:
        return set()
    return {name.partition(".")[0] for name in names if name.endswith((".py", ".so")) or _is_package(path, name)}


def _is_package(path: str, name: str) -> bool:
    return os.path.exists(os.path.join(path, name, "__init__.py"))  # noqa: PTH110, PTH118


class _Forked(subprocess.Popen[Any]):
    """A process that the server forks; its exit code comes from there."""

    def __init__(
        self,
        server: _ForkServer,
        command: Sequence[str],
        *,
        log: str | None = None,
        kept: Sequence[int] = (),
        **more: Any,
    ) -> None:
        self._server = server
        self._log = log
        self._kept = kept
        self._read = Lock()
        super().__init__(command, **more)

    def _execute_child(self, *given: Any) -> None:
        """Fork instead of starting a program."""
        wanted = dict(zip(_EXECUTE, given, strict=True))
        environment, directory = wanted["env"], wanted["cwd"]
        order = {
            "command": [os.fspath(word) for word in wanted["args"]],
            "environment": inherited_environment(without=()) if environment is None else environment,
            "directory": os.fspath(directory or Path.cwd()),
            "session": wanted["start_new_session"],
            "log": self._log,
        }
        standard = [wanted["p2cread"], wanted["c2pwrite"], wanted["errwrite"]]
        given_or_own = [number if one == -1 else one for number, one in enumerate(standard)]
        try:
            self.pid, self._answers = self._server.order(order, given_or_own, self._kept)
            self._child_created = True
        finally:
            pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*(wanted[name] for name in pipes))  # type: ignore[attr-defined]

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        return self._wait_for(0)

    def _wait(self, timeout: float | None) -> int:
        code = self._wait_for(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _wait_for(self, seconds: float | None) -> int | None:
        if self.returncode is None:
            with self._read:
                ready, _, _ = select.select([self._answers], [], [], seconds)
                if self.returncode is None and ready:
                    # nothing comes if the server is gone, and with it the code
                    answer = self._answers.recv(32).removeprefix(fork_server.ENDED)
                    self.returncode = int(answer or -signal.SIGKILL)
                    self._answers.close()
        return self.returncode


#: What `Popen` hands to the method that starts the process.
_EXECUTE = tuple(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]  # type: ignore[attr-defined]


@cache
def _server() -> _ForkServer:
    server = _ForkServer()
    atexit.register(server.close)
    return server


class _Switch:
    """Whether the test that runs may fork."""

    forks = False


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a command as `subprocess.Popen` does; a program of this interpreter without its imports."""
    environment, directory = options.get("env"), options.get("cwd")
    if _can_fork(command, inherited_environment(without=()) if environment is None else environment, directory):
        return _Forked(_server(), command, **options)
    return subprocess.Popen(command, **options)


def run(
    command: Sequence[str],
    *,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a command as `subprocess.run` does; a program of this interpreter without its imports."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start(command, **options) as process:
        try:
            out, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, errors)
    if check:
        done.check_returncode()
    return done


def _can_fork(command: Sequence[str], environment: Mapping[str, str], directory: Path | str | None) -> bool:
    # a server of another kind starts no process that forks
    is_own = os.fspath(command[0]) in {sys.executable, *_OWN_SCRIPTS}
    return is_own and _Switch.forks and _server().can_run(command, environment, os.fspath(directory or Path.cwd()))


_start_reaper = reaped.start_reaper


def _fork_reaper(
    order: Mapping[str, Any], environment: Mapping[str, str], directory: Path | None, kept: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Fork a command with its reaper; start them where that is not possible."""
    if not _can_fork(order["command"], environment, directory):
        return _start_reaper(order, environment, directory, kept)
    return _Forked(
        _server(), order["command"], log=order["log"], kept=kept, env=dict(environment), cwd=directory,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


@contextmanager
def forking() -> Iterator[None]:
    """Fork what can be forked for the duration of a `with`; on Linux."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Switch, "forks", sys.platform == "linux")
        patch.setattr(reaped, "start_reaper", _fork_reaper)
        yield


def pytest_configure(config: pytest.Config) -> None:
    """Describe the mark; for a conftest.py."""
    config.addinivalue_line("markers", "real_start: starts each process with an interpreter of its own")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Fork in each test without that mark, and in its fixtures; for a conftest.py."""
    if item.get_closest_marker("real_start"):
        return (yield)
    with forking():
        return (yield)
