"""What is forked runs as what is started, and nothing of it stays (`support.forked`)."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from repot.config import inherited_environment
from repot.testbed import ReapedProcess
from repot.waiting import wait_until
from support import forked

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = str(Path(__file__).parents[1])

#: Prints what the interpreter has set.
SETTINGS = """
import json, locale, logging, multiprocessing, os, signal, sys, tempfile, threading, time
print(json.dumps({
    "arguments": [sys.argv, sys.orig_argv],
    "path": sys.path,
    "main": sorted({*vars()} - {"__annotations__"}),
    "directory": [os.getcwd(), tempfile.gettempdir()],
    "environment": dict(os.environ),
    "descriptors": len(os.listdir("/proc/self/fd")),
    "flags": [sys.flags.isolated, sys.flags.safe_path, sys.flags.optimize, sys.flags.no_user_site],
    "bytecode": sys.dont_write_bytecode,
    "signals": [str(signal.getsignal(one)) for one in sorted(signal.valid_signals())],
    "mask": list(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "threads": [threading.current_thread().name, threading.active_count()],
    "place": [time.tzname, locale.setlocale(locale.LC_CTYPE), sys.stdout.encoding],
    "streams": [
        (type(one.buffer).__name__, one.errors, one.line_buffering, one.write_through)
        for one in (sys.stdin, sys.stdout, sys.stderr)
    ],
    "handlers": len(logging.root.handlers),
    "process": multiprocessing.current_process().name,
}, indent=1))
"""

#: Prints what Celery knows of applications, tasks and receivers before there are any.
CELERY = """
import celery.app.builtins, celery.bin.celery
from celery import _state, signals
print(_state.default_app, len(_state._get_active_apps()), len(_state._on_app_finalizers))
print({name: one.receivers for name, one in vars(signals).items() if getattr(one, "receivers", None)})
"""

LAST = """
import atexit, threading
atexit.register(print, "atexit")
threading.Thread(target=lambda: print("thread")).start()
"""

PROGRAMS = {
    "settings": ["-c", SETTINGS, "one", "two words"],
    "unbuffered": ["-c", SETTINGS],
    "celery": ["-c", CELERY],
    "error": ["-c", "def fail():\n    1 / 0\nprint('out')\nfail()"],
    "exit with a number": ["-c", "import sys; sys.exit(7)"],
    "exit with a text": ["-c", "import sys; sys.exit('no')"],
    "interrupt": ["-c", "raise KeyboardInterrupt"],
    "killed": ["-c", "import os; os.kill(os.getpid(), 9)"],
    "last things": ["-c", LAST],
    "pool": ["-m", "pool"],
    "script": ["pool.py", "word"],
    "no module": ["-m", "no.such"],
    "tasks": ["-c", "import celery\nprint(sorted(celery.Celery().tasks))"],
    "repot": ["-m", "repot", "config", "variables"],
    "refused": ["-m", "repot", "config", "show"],
    "version of Celery": ["-m", "celery", "--version"],
}

#: Two processes find the function of the main module, by fork and by spawn.
POOL = """
import multiprocessing, sys

def double(number):
    return 2 * number

if __name__ == "__main__":
    print(sys.argv[1:], __name__, __spec__ and __spec__.name)
    for way in ("fork", "spawn"):
        with multiprocessing.get_context(way).Pool(2) as pool:
            print(pool.map(double, range(3)))
"""

#: Starts a command, says which processes run, and waits to be killed.
CALLER = """
import sys
from pathlib import Path
import psutil
from repot.testbed import ReapedProcess
from support import forked
wait = [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '600'])"]
with forked.forking():
    process = ReapedProcess(wait, log=Path(sys.argv[1], "log"), environment={"PATH": "/usr/bin:/bin"})
print(*(one.pid for one in psutil.Process().children(recursive=True)), process.pid, flush=True)
sys.stdin.read()
"""

#: Starts a command without a reaper, says which process it is and which has forked it, and waits to be killed.
PLAIN = """
import sys
import psutil
from support import forked
with forked.forking():
    process = forked.start([sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '600'])"])
print(process.pid, psutil.Process(process.pid).ppid(), flush=True)
sys.stdin.read()
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux")


@pytest.fixture(autouse=True)
def _forking() -> Iterator[None]:
    with forked.forking():
        yield


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_it_runs_as_an_interpreter_of_its_own(program: list[str], tmp_path: Path) -> None:
    (tmp_path / "pool.py").write_text(POOL)
    command = [sys.executable, *program]
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "TZ": "Asia/Tokyo"}
    environment["PYTHONPATH"] = f"{tmp_path}:/no"
    if program is PROGRAMS["unbuffered"]:
        environment["PYTHONUNBUFFERED"] = "1"
    started = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert is_forked(command, environment, tmp_path)
    done = forked.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert (started.stdout, started.stderr, started.returncode) == (done.stdout, done.stderr, done.returncode)


def is_forked(command: list[str], environment: dict[str, str], directory: Path) -> bool:
    with forked.start(command, env=environment, cwd=directory, stdout=-1, stderr=-1) as process:
        return type(process) is not subprocess.Popen


@pytest.mark.parametrize(
    ("command", "variables"),
    [
        ([sys.executable, "-I", "-c", ""], {}),
        ([sys.executable, "-c", "", "--pool=gevent"], {}),
        ([sys.executable, "-c", ""], {"PYTHONHASHSEED": "1"}),
        ([sys.executable, "-c", ""], {"PYTHONPATH": "other"}),
        (["true"], {}),
    ],
    ids=["option", "gevent", "seed", "another celery", "another program"],
)
def test_what_needs_an_interpreter_of_its_own_gets_one(
    command: list[str], variables: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "celery.py").touch()
    assert not is_forked(command, {"PATH": "/usr/bin:/bin", **variables}, tmp_path)
    assert is_forked([sys.executable, "-c", ""], {"PATH": "/usr/bin:/bin"}, tmp_path)


def test_it_is_found_by_its_command_and_environment(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "input()", "word"]
    environment = {"PATH": "/usr/bin:/bin", "MARK": str(tmp_path), "LANG": "C.UTF-8"}
    with forked.start(command, env=environment, stdin=subprocess.PIPE) as process:
        shown = psutil.Process(process.pid)
        assert command == shown.cmdline()
        assert environment == shown.environ()


def test_a_forked_command_has_a_reaper(tmp_path: Path) -> None:
    code = "import os, subprocess; print('begun', flush=True); subprocess.run(['sleep', '600'])"
    environment = {"PATH": "/usr/bin:/bin"}
    with ReapedProcess([sys.executable, "-c", code], log=tmp_path / "log", environment=environment) as process:
        wait_until(lambda: psutil.Process(process.pid).children(), within_s=20, what="it has started its own")
        (sleeping,) = psutil.Process(process.pid).children()
        assert process.log_tail() == "begun"
        assert process.exit_code is None
    assert process.exit_code == 128 + 9
    assert not running([process.pid, sleeping.pid])


def test_nothing_stays_when_the_tests_are_killed(tmp_path: Path) -> None:
    environment = inherited_environment(without=(forked.SHARED,)) | {"PYTHONPATH": TESTS}
    command = [sys.executable, "-c", CALLER, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdin=-1, stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        pids = [int(pid) for pid in caller.stdout.readline().split()]
        # the process that forks, the reaper, the command
        assert {*pids} == {*running(pids)}
        assert len({*pids}) >= 3
        caller.kill()
    wait_until(lambda: not running(pids), within_s=20, what="all have ended")


def test_the_processes_of_a_run_share_one_and_what_it_forked_ends_with_each() -> None:
    command = [sys.executable, "-c", PLAIN]
    with forked.shared_by_a_run() as variables:
        environment = inherited_environment(without=()) | {"PYTHONPATH": TESTS} | variables
        popen: Any = partial(subprocess.Popen, command, env=environment, stdin=-1, stdout=subprocess.PIPE, text=True)
        with popen() as first, popen() as other:
            (begun, forks), (stays, the_same) = (map(int, one.stdout.readline().split()) for one in (first, other))
            assert forks == the_same
            first.kill()
            wait_until(lambda: not running([begun]), within_s=20, what="the command of the killed one has ended")
            assert running([stays, forks]) == [stays, forks]
            other.kill()
    assert not running([stays, forks])


def test_a_run_that_has_ended_is_not_asked() -> None:
    with forked.shared_by_a_run() as variables:
        pass
    environment = inherited_environment(without=()) | {"PYTHONPATH": TESTS} | variables
    command = [sys.executable, "-c", PLAIN]
    with subprocess.Popen(command, env=environment, stdin=-1, stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        begun, forks = map(int, caller.stdout.readline().split())
        assert running([begun, forks]) == [begun, forks]
        caller.kill()
    wait_until(lambda: not running([begun, forks]), within_s=20, what="both have ended")


def running(pids: list[int]) -> list[int]:
    return [pid for pid in pids if _runs(pid)]


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
