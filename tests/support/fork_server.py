"""A process that has imported what workers and commands import, and forks them: a start without its second of imports.

`support.forked` starts this file as a program, with the other end of a socket. It has one thread, no connection to a
server and no application, and ends when the other end is closed. The processes of a run share one: they connect to the
socket on which it listens, and their commands without a reaper end with them.

What it forks is set up as by the interpreter: arguments, environment, directory, descriptors, `sys.path`, streams,
signals, `__main__`, and what `/proc` shows. It differs from a start in what modules read when they are imported, in the
seed of `hash`, and in that no module is deleted at the end.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import io
import json
import linecache
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import threading
import time
import types
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Bytes of the largest order: an environment and a command are some 10,000.
ORDER_BYTES = 1 << 20
#: Stands in the command and in the environment of this program: what is forked writes its own over it.
ROOM = "-" * 8192

#: What an answer starts with: the id of a process follows, or its exit code.
BEGUN, ENDED = b"begun ", b"ended "

#: The locale in which the interpreter sets another one, for what it starts as well.
_NO_LOCALE = {"C", "POSIX"}
#: Those in which the standard streams take any bytes.
_LENIENT = {*_NO_LOCALE, "C.UTF-8", "C.utf8", "UTF-8"}

#: What Celery, kombu and the command line import by name only when they run. Each process of a pool imports `cffi`.
_BY_NAME = (
    "celery.app.amqp",
    "celery.app.control",
    "celery.app.events",
    "celery.app.log",
    "celery.apps.beat",
    "celery.apps.worker",
    "celery.backends.database",
    "celery.backends.redis",
    "celery.beat",
    "celery.bin.celery",
    "celery.concurrency.prefork",
    "celery.concurrency.solo",
    "celery.concurrency.thread",
    "celery.events.state",
    "celery.fixups.django",
    "celery.worker.autoscale",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.worker.strategy",
    "cffi.cparser",
    "django.core",
    "fastapi",
    "kombu.transport.pyamqp",
    "kombu.transport.redis",
    "prometheus_client",
    "psycopg",
    "pymysql",
    "rich.live",
    "rich.progress",
    "rich.table",
    "sqlalchemy.dialects.mysql.pymysql",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
    "sqlalchemy.orm",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.h11_impl",
)
#: Modules of repot that make an application or tasks, or import such, and programs that a library calls.
_NOT_IMPORTED = (
    "repot.__main__",
    "repot.chaos",
    "repot.cli.chaos",
    "repot.cli.demo",
    "repot.database.migrations",
    "repot.worker.app",
    "repot.worker.synthetic_tasks",
)


def import_all() -> None:
    """Import what workers and commands import; what is not installed is left to the command that needs it."""
    import repot

    for name in _BY_NAME:
        with suppress(ImportError):
            importlib.import_module(name)
    _import_below(repot)


def _import_below(package: types.ModuleType) -> None:
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if not found.name.startswith(_NOT_IMPORTED):
            with suppress(ImportError):
                module = importlib.import_module(found.name)
                if found.ispkg:
                    _import_below(module)


def places() -> dict[str, str]:
    """Return where each imported package or module of no package was found: another one of that name cannot be run."""
    found = {}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if path and "." not in name and not name.startswith("__"):
            directory = os.path.dirname(os.path.realpath(path))  # noqa: PTH120
            found[name] = os.path.dirname(directory) if hasattr(module, "__path__") else directory  # noqa: PTH120
    return found


class Forked:
    """What a forked process has to become.

    Attributes:
        order: `{"command", "environment", "directory", "session", "log"}`; with a log the command has a reaper.
        descriptors: standard input, output and errors; the socket for the answers; what a reaper keeps open.
    """

    def __init__(self, order: dict[str, Any], descriptors: list[int]) -> None:
        self.order = order
        self.descriptors = descriptors

    def run(self) -> int:
        """Become it, and run to the end; return the exit code."""
        command, log = self.order["command"], self.order["log"]
        if self.order["session"]:
            os.setsid()
        for number, given in enumerate(self.descriptors[:3]):
            os.dup2(given, number)
        answers = self.descriptors[3]
        self._set_environment(command if log is None else ["reaper", *command])
        # standard input is at work now, and the caller may signal it
        os.write(answers, BEGUN + str(os.getpid()).encode())
        for given in {*self.descriptors[:4]} - {0, 1, 2}:
            os.close(given)
        if log is None:
            return run_command(command)
        return self._reap(command, log)

    def _reap(self, command: list[str], log: str) -> int:
        """Fork the command as `repot/testbed/reaper.py` starts one, and be its reaper."""
        from repot.testbed import reaper

        begun, begins = os.pipe()
        child = os.fork()
        if child:
            os.close(begins)
            # until it is the leader of a session
            os.read(begun, 1)
            os.close(begun)
            return reaper.watch(child, lambda: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), log)
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        for number, opened in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
            os.dup2(opened, number)
        show(command, dict(os.environ))
        os.closerange(3, _highest() + 1)
        return run_command(command)

    def _set_environment(self, command: list[str]) -> None:
        os.environ.clear()
        os.environ.update(self.order["environment"])
        if not os.environ.get("LC_ALL") and _locale() in _NO_LOCALE:
            # PEP 538
            os.environ["LC_CTYPE"] = "C.UTF-8"
        time.tzset()
        show(command, self.order["environment"])
        os.chdir(self.order["directory"])


def _highest() -> int:
    return max(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208


def show(command: list[str], environment: dict[str, str]) -> None:
    """Show command and environment in `/proc`: tests find processes by them. It does nothing where it has no room."""
    with open("/proc/self/stat") as stat:  # noqa: PTH123
        # proc(5): fields 48 to 51, counted from 1; behind the name, which may hold anything, is the third
        fields = stat.read().rpartition(")")[2].split()
    arguments, arguments_end, variables, variables_end = (int(one) for one in fields[45:49])
    # a last byte that is not zero says that this is one text, not one for each argument
    _write(arguments, arguments_end, " ".join(command).encode() + b"\0", b"\1")
    _write(
        variables, variables_end, b"".join(f"{name}={value}\0".encode() for name, value in environment.items()), b"\0"
    )


def _write(start: int, end: int, text: bytes, last: bytes) -> None:
    if 0 < len(text) < end - start:
        ctypes.memmove(start, text.ljust(end - start - 1, b"\0") + last, end - start)


def run_command(command: list[str]) -> int:
    """Run `python -m MODULE`, `python -c CODE`, `python SCRIPT` or a script as the interpreter does; the exit code."""
    interpreter_or_script, *rest = command
    _set_interpreter(command)
    try:
        if not os.path.basename(interpreter_or_script).startswith("python"):  # noqa: PTH119
            _run_script(interpreter_or_script, command)
        elif rest[0] == "-m":
            sys.argv = ["-m", *rest[2:]]
            sys.path.insert(0, os.getcwd())  # noqa: PTH109
            # what the interpreter itself calls
            runpy._run_module_as_main(rest[1])  # type: ignore[attr-defined]
        elif rest[0] == "-c":
            sys.argv = ["-c", *rest[2:]]
            sys.path.insert(0, "")
            if sys.version_info >= (3, 13):  # whose tracebacks show the code
                linecache.cache["<string>"] = (len(rest[1]), None, rest[1].splitlines(keepends=True), "<string>")
            exec(compile(rest[1], "<string>", "exec"), _main().__dict__)  # noqa: S102
        else:
            _run_script(rest[0], rest)
    except SystemExit as error:
        return _exit_code(error)
    except BaseException as error:  # noqa: BLE001 - the interpreter's last frame is this one
        return _uncaught(error)
    return 0


def _run_script(path: str, argv: list[str]) -> None:
    sys.argv = list(argv)
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
    with open(path, "rb") as file:  # noqa: PTH123
        code = compile(file.read(), path, "exec")
    main = _main()
    main.__file__ = path
    main.__loader__ = SourceFileLoader("__main__", path)
    exec(code, main.__dict__)  # noqa: S102


def _main() -> types.ModuleType:
    return sys.modules["__main__"]


def _set_interpreter(command: list[str]) -> None:
    """Set what the interpreter sets when it starts."""
    import multiprocessing.process
    import tempfile

    import billiard.process

    sys.modules["__main__"] = types.ModuleType("__main__")
    vars(sys.modules["__main__"])["__builtins__"] = sys.modules["builtins"]
    sys.orig_argv = list(command)
    added = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]  # noqa: PTH100
    sys.path[:0] = [path for number, path in enumerate(added) if path not in added[:number]]
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    importlib.invalidate_caches()
    tempfile.tempdir = None
    for module in (multiprocessing.process, billiard.process):
        vars(module)["ORIGINAL_DIR"] = os.getcwd()  # noqa: PTH109
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        stream = _stream(number, name, mode)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _locale() -> str:
    return next(filter(None, map(os.environ.get, ("LC_ALL", "LC_CTYPE", "LANG"))), "C")


def _stream(descriptor: int, name: str, mode: str) -> io.TextIOWrapper:
    raw = io.FileIO(descriptor, mode, closefd=False)
    raw.name = f"<{name}>"  # type: ignore[misc]
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    binary: Any = io.BufferedReader(raw) if mode == "r" else raw if unbuffered else io.BufferedWriter(raw)
    found = io.TextIOWrapper(
        binary,
        encoding="utf-8",
        errors="backslashreplace" if name == "stderr" else "surrogateescape" if _locale() in _LENIENT else "strict",
        newline=None if mode == "r" else "\n",
        line_buffering=not unbuffered and (name == "stderr" or raw.isatty()),
        write_through=unbuffered,
    )
    found.mode = mode  # type: ignore[misc]
    return found


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)  # noqa: T201 - as the interpreter does
    return 1


def _uncaught(error: BaseException) -> int:
    """Print it without the frames of this file; an interrupt ends the process, as it ends the interpreter."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)
    if isinstance(error, KeyboardInterrupt):
        _end()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return 1


def _end() -> None:
    """Do what the interpreter does at its end, but for the deletion of two thousand modules."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


@dataclass
class _Begun:
    """A process that was forked, and has not been waited for.

    Attributes:
        orders: the socket of who asked for it.
        answers: the descriptor for its exit code.
        is_reaped: whether it is a reaper, which ends by itself.
    """

    orders: socket.socket
    answers: int
    is_reaped: bool


class _Server:
    """Take orders, and tell the exit codes of what was forked."""

    def __init__(self, starter: socket.socket, listening: socket.socket | None) -> None:
        self._starter, self._listening = starter, listening
        self._imported = what_is_imported()
        self._clients = {starter}
        self._begun: dict[int, _Begun] = {}
        self._woken, self._wakes = socket.socketpair()
        self._woken.setblocking(False)
        self._wakes.setblocking(False)

    def serve(self) -> Forked | None:
        """Return in each forked process what it has to become; None at the end."""
        # Ctrl-C is for the tests; they end this process
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakes.fileno())
        self._greet(self._starter)
        while self._starter in self._clients:
            ready, _, _ = select.select([*self._sockets()], [], [])
            if self._woken in ready:
                self._woken.recv(4096)
                self._tell()
            if self._listening in ready:
                self._accept()
            for orders in self._clients.intersection(ready):
                if forked := self._take(orders):
                    return forked
        return None

    def _sockets(self) -> Iterator[socket.socket]:
        yield from self._clients
        yield self._woken
        if self._listening:
            yield self._listening

    def _accept(self) -> None:
        assert self._listening is not None
        orders, _ = self._listening.accept()
        self._clients.add(orders)
        # it may have ended
        with suppress(OSError):
            self._greet(orders)

    def _greet(self, orders: socket.socket) -> None:
        orders.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ORDER_BYTES)
        orders.sendall(self._imported)

    def _take(self, orders: socket.socket) -> Forked | None:
        """Take an order, and return in the forked process what it has to become."""
        message: bytes = b""
        descriptors: list[int] = []
        # one that ends with something unread resets the connection
        with suppress(ConnectionResetError):
            message, descriptors, _, _ = socket.recv_fds(orders, ORDER_BYTES, 16)
        if not message:
            self._forget(orders)
            return None
        forked = Forked(json.loads(message), descriptors)
        child = os.fork()
        if not child:
            self._leave()
            return forked
        self._begun[child] = _Begun(orders, os.dup(descriptors[3]), is_reaped=forked.order["log"] is not None)
        for descriptor in descriptors:
            os.close(descriptor)
        # one that has ended already
        self._tell()
        return None

    def _forget(self, orders: socket.socket) -> None:
        """End the commands of a process that is gone."""
        self._clients.remove(orders)
        orders.close()
        for pid, begun in self._begun.items():
            # it has not been waited for: the id is still its own
            if begun.orders is orders and not begun.is_reaped:
                os.kill(pid, signal.SIGKILL)

    def _tell(self) -> None:
        while self._begun:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            answers = self._begun.pop(pid).answers
            # the test may have ended
            with suppress(OSError):
                os.write(answers, ENDED + str(os.waitstatus_to_exitcode(status)).encode())
            os.close(answers)

    def _leave(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for begun in self._begun.values():
            os.close(begun.answers)
        for one in (*self._sockets(), self._wakes):
            one.close()


def what_is_imported() -> bytes:
    """Return what tells who asks which programs can be forked here."""
    interpreter = {name: value for name, value in os.environ.items() if name.startswith("PYTHON")}
    found = {"program": [sys.executable, __file__], "interpreter": interpreter, "places": places(), "path": sys.path}
    return json.dumps(found).encode()


def main(starter: socket.socket, listening: socket.socket | None = None) -> int:
    """Import, and serve; return the exit code of this process, or of what it has become."""
    # of this file's directory, where the tests' support is
    del sys.path[0]
    import_all()
    gc.collect()
    # no collection touches, and so copies, what all share
    gc.freeze()
    forked = _Server(starter, listening).serve()
    if forked is None:
        return 0
    code = forked.run()
    _end()
    return code


if __name__ == "__main__":
    os._exit(main(*(socket.socket(fileno=int(one)) for one in sys.argv[2:])))
