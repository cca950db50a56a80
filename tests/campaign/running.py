"""Run a group: its commands, their output on the terminal and in a log, and what they cost."""

from __future__ import annotations

import fcntl
import os
import re
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING

from campaign.groups import BIN, ROOT
from campaign.leftovers import temporary_files
from repot.config import inherited_environment
from repot.errors import DeadlineExceeded, Interrupted
from repot.testbed import ReapedProcess
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from campaign.groups import Command, Group

#: How often a test that failed is run again, alone.
REPEATS = 3

#: More failed tests than this are not repeated: something is broken. A fixture that fails counts for each of its tests.
MOST_REPEATED = 10

#: Seconds; a command that hangs is ended.
_LONGEST_S, _INTERRUPTED_WITHIN_S = 3600, 60

#: pytest's last line, but for the time.
_COUNTS = re.compile(r"^=+ (.*\b(?:passed|failed|error|skipped).*) in [\d.]+s.*=+$", re.MULTILINE)


@dataclass(slots=True)
class Result:
    """How a group ended.

    Attributes:
        problem: empty if it passed.
        tests: what pytest counted, as it says it; empty for other commands.
        skipped: why it did not run; empty if it did.
        unstable: tests that failed once and passed each time when repeated, with their logs.
        wall_s, processor_s: what it took; of the processor, that of all processes which ended and were waited for. What
            the run's own process forks, for all groups, belongs to none.
    """

    problem: str = ""
    tests: str = ""
    skipped: str = ""
    unstable: dict[str, str] = field(default_factory=dict)
    wall_s: float = 0
    processor_s: float = 0


def run_group(group: Group, logs: Path, *, repeats: bool) -> Result:
    """Run a group's commands, and look for what they left; with `repeats`, a test that failed gets its second tries."""
    begun, before = monotonic(), _processor_s()
    result = Result()
    with temporary_files() as files:
        environment = child_environment() | {"TMPDIR": str(files.path)}
        log = logs / f"{group.name}.log"
        log.write_text("")
        with _beside(group.beside, log.with_suffix(".beside.log"), environment) as beside:
            for command in group.commands:
                if command.python and not (ROOT / command.python).exists():
                    result.skipped = f"{command.python} is not here"
                    break
                result.problem = _run(command, log, environment, result if repeats else None)
                if result.problem:
                    break
            problems = [result.problem, beside.result()]
        if left := files.leftovers():
            problems.append("left behind: " + ", ".join(left))
        result.problem = "; ".join(filter(None, problems))
    result.tests = ", ".join(_COUNTS.findall(log.read_text()))
    if result.tests and not re.search("passed|failed|error", result.tests):
        result.skipped = result.tests
    result.wall_s, result.processor_s = monotonic() - begun, _processor_s() - before
    return result


def prepare(group: Group, logs: Path) -> str:
    """Install what a group needs; return the problem, or nothing. Of lanes, one runs a script at a time."""
    for need in group.needs:
        with (logs / f"{Path(need[0]).name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            words = [str(ROOT / need[0]), *need[1:]]
            done = subprocess.run(words, cwd=ROOT, env=child_environment(), stdout=2, check=False)
            if done.returncode:
                return f"{' '.join(need)} ended with {done.returncode}"
    return ""


@contextmanager
def _beside(commands: Sequence[Command], log: Path, environment: Mapping[str, str]) -> Iterator[Future[str]]:
    """Run commands one after another in a thread; their output is printed at their end. The result is the problem."""
    log.write_text("")
    stop = Event()

    def run() -> str:
        codes = [tee(command.words, log, environment, show=None, stop=stop) for command in commands]
        sys.stdout.write(log.read_text())
        failed = [" ".join(one.words[:4]) for one, code in zip(commands, codes, strict=True) if code]
        return f"failed: {', '.join(failed)}" if failed else ""

    with ThreadPoolExecutor(1) as thread:
        try:
            yield thread.submit(run)
        except BaseException:
            stop.set()
            raise


def _run(command: Command, log: Path, environment: Mapping[str, str], repeated: Result | None) -> str:
    failed = log.with_suffix(".failed")
    failed.unlink(missing_ok=True)
    words = list(command.words)
    if command.python:
        words += ["-p", "campaign.failed_tests", "--failed-to", str(failed), *_short(environment)]
    try:
        code = tee(words, log, environment)
    except DeadlineExceeded as error:
        return str(error)
    if not code:
        return ""
    tests = failed.read_text().splitlines() if failed.exists() else []
    problem = f"{' '.join(command.words[:4])} ... ended with {code}"
    # pytest's 1 is "tests failed"; another code, or a failure without a test's name, does not belong to a test
    if repeated is None or command.python is None or code != 1 or not 0 < len(tests) <= MOST_REPEATED:
        return problem
    firm = [test for test in tests if not _passes_alone(test, command.python, log, environment)]
    if firm:
        return f"failed again when repeated: {', '.join(firm)}"
    first = log.with_suffix(".first.log")
    first.write_text(log.read_text())
    repeated.unstable |= dict.fromkeys(tests, str(first))
    return ""


def _short(environment: Mapping[str, str]) -> tuple[str, str]:
    """Name a directory for pytest's temporary files: its own names for it leave too few characters for a socket's."""
    return "--basetemp", f"{environment['TMPDIR']}/pytest"


def _passes_alone(test: str, python: str, log: Path, environment: Mapping[str, str]) -> bool:
    words = [python, "-m", "pytest", "--numprocesses", "0", *_short(environment), test]
    return all(not tee(words, log.with_suffix(".repeat.log"), environment) for _ in range(REPEATS))


def _to_terminal(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def tee(
    words: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    *,
    show: Callable[[str], None] | None = _to_terminal,
    stop: Event | None = None,
    interrupted_within_s: float = _INTERRUPTED_WITHIN_S,
) -> int:
    """Run a command, its output in a log and shown; return its exit code. What it started ends with it.

    Raises:
        DeadlineExceeded: it has not ended within an hour.
        Interrupted: `stop` was set.
    """
    with (
        log.open("a") as printed,
        ReapedProcess(words, log=log, environment=environment, directory=ROOT) as process,
        log.open(errors="replace") as output,
    ):
        output.seek(printed.tell())

        def has_ended() -> bool:
            code = process.exit_code  # before what it printed, which is then all
            if show:
                show(output.read())
            return code is not None

        try:
            wait_until(has_ended, within_s=_LONGEST_S, what=f"{words[0]} ends", poll_s=0.2, stop=stop)
        except (KeyboardInterrupt, Interrupted):
            # pytest removes containers and says what it knows
            process.signal(signal.SIGINT)
            with suppress(DeadlineExceeded):
                wait_until(has_ended, within_s=interrupted_within_s, what="the interrupted command ends")
            raise
        assert process.exit_code is not None
        return process.exit_code


def child_environment() -> dict[str, str]:
    """Return the environment of what a campaign starts."""
    found = inherited_environment(without=("PYTHONDONTWRITEBYTECODE",))
    return found | {"PATH": os.pathsep.join((str(BIN), found.get("PATH", ""))), "PYTHONPATH": str(ROOT / "tests")}


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
