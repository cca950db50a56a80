"""Try defects: each in a copy of the code, by its tests, in a process of its own.

The process is a fork of this one, which has imported pytest and the libraries and nothing of repot: most of a short
test's time would be the import of Celery. A copy is used again, with its compiled modules, once a defect is out of it.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import sys
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import pytest

from mutants.defects import ROOT, Defect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from multiprocessing.process import BaseProcess

#: Slow to import, and nothing of repot; where one is missing, the tests that need it say so.
_LIBRARIES = (
    *("celery.app.amqp", "celery.app.trace", "celery.bin.worker", "celery.canvas", "celery.worker.consumer"),
    *("celery.worker.strategy", "kombu.transport.pyamqp", "kombu.transport.redis", "redis.cluster", "sqlalchemy"),
    *("sqlalchemy.dialects.mysql", "sqlalchemy.dialects.postgresql", "sqlalchemy.dialects.sqlite", "alembic.command"),
    *("fastapi", "pydantic_settings", "hypothesis.stateful", "requests", "psutil", "yaml", "jinja2"),
)
#: What one run of pytest may take; a defect that lets it hang is caught as well.
LIMIT_S = 60.0
#: What a run may take to end after it was asked to.
_END_S = 5.0


@dataclass(frozen=True, slots=True)
class Trial:
    """What the tests said to a defect; or to the code as it is.

    Attributes:
        answer: exit code of pytest; None where the time limit ended it.
        log: what pytest wrote.
    """

    defect: Defect | None
    answer: int | None
    log: str
    took_s: float

    @property
    def is_red(self) -> bool:
        """Return whether a test failed, or hung."""
        return self.answer in (None, pytest.ExitCode.TESTS_FAILED)

    @property
    def is_green(self) -> bool:
        """Return whether all tests passed."""
        return self.answer == pytest.ExitCode.OK


class Copy:
    """A copy of the code and its tests, for one run of pytest at a time."""

    def __init__(self, directory: Path, options: Iterable[str]) -> None:
        """Copy; `options` are of pytest."""
        self.root, self._options = directory / "copy", tuple(options)
        self._log, self._files = directory / "log", directory / "files"
        for name in ("repot", "tests"):
            shutil.copytree(ROOT / name, self.root / name)
        shutil.copy2(ROOT / "pyproject.toml", self.root)
        self._process: BaseProcess | None = None
        self._defect: Defect | None = None
        self._begun_at = self._limit_s = 0.0
        self._planted = 0

    @property
    def sentinel(self) -> int:
        """Return what becomes ready when the run ends."""
        assert self._process is not None
        return self._process.sentinel

    @property
    def remaining_s(self) -> float:
        """Return how long the run may still take."""
        return max(self._begun_at + self._limit_s - monotonic(), 0)

    @property
    def is_over(self) -> bool:
        """Return whether the run has ended, or its time has."""
        return self._process is None or not self._process.is_alive() or not self.remaining_s

    def begin(self, defect: Defect | None, group: str, tests: Iterable[str]) -> None:
        """Plant a defect, and run tests of a group.

        Raises:
            RottenError: it cannot be planted.
        """
        if defect:
            self._plant(self.root / defect.file, defect.planted(self.root))
        self._defect, self._begun_at = defect, monotonic()
        # all tests at once take longer than those of one defect
        self._limit_s = LIMIT_S if defect else 10 * LIMIT_S
        self._files.mkdir()
        self._process = get_context("fork").Process(target=self._run, args=(group, list(tests)))
        self._process.start()

    def end(self) -> Trial:
        """Return how the run ended, and take the defect out; a run beyond the time limit is ended."""
        assert self._process is not None
        self._process.join(self.remaining_s)
        answer = self._process.exitcode
        self.stop()
        return Trial(self._defect, answer, self._log.read_text(errors="replace"), monotonic() - self._begun_at)

    def stop(self) -> None:
        """End the run with all its processes, and take the defect out."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.is_alive():
            with suppress(ProcessLookupError):
                # its fixtures end what they began
                os.kill(process.ident or 0, signal.SIGINT)
            process.join(_END_S)
        with suppress(ProcessLookupError):
            os.killpg(process.ident or 0, signal.SIGKILL)
        process.join()
        shutil.rmtree(self._files, ignore_errors=True)
        if self._defect:
            shutil.copy2(ROOT / self._defect.file, self.root / self._defect.file)

    def _plant(self, path: Path, text: str) -> None:
        path.write_text(text)
        # a compiled module is taken by its source's time in whole seconds, and by its size
        self._planted += 1
        os.utime(path, (self._planted, self._planted))

    def _run(self, group: str, tests: list[str]) -> None:
        os.setsid()
        with self._log.open("wb") as log:
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)
        os.chdir(self.root)
        # an installed repot comes after this, here and in the processes of tests
        sys.path[:] = [str(self.root), *(one for one in sys.path if not _is_of_the_code(one))]
        os.environ |= {"PYTHONPATH": str(self.root), "TMPDIR": str(self._files)}
        tempfile.tempdir = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        options = ["-p", "no:cacheprovider", "--assert=plain", "-q", "--rootdir", str(self.root), "--group", group]
        answer = pytest.main([*options, *self._options, *tests])
        for written in (sys.stdout, sys.stderr):
            written.flush()
        # threads that a failed test has left do not hold this process up
        os._exit(answer)


def _is_of_the_code(path: str) -> bool:
    return Path(path).resolve() in (ROOT, ROOT / "tests")


def try_all(
    defects: Iterable[Defect], *, processes: int, options: Iterable[str], tell: Callable[[Trial], None]
) -> list[Trial]:
    """Try all defects by their tests, so many at a time; and first these tests on the code as it is."""
    import_libraries()
    defects = list(defects)
    every: dict[str, dict[str, None]] = {}
    for one in defects:
        every.setdefault(one.group, {}).update(dict.fromkeys(one.tests))
    todo: list[tuple[Defect | None, str, Iterable[str]]] = [(None, group, tests) for group, tests in every.items()]
    todo += [(one, one.group, one.tests) for one in defects]
    trials: list[Trial] = []
    with _copies(min(processes, len(todo)), options) as free:
        at_work: list[Copy] = []
        while todo or at_work:
            while todo and free:
                at_work.append(free.pop())
                at_work[-1].begin(*todo.pop(0))
            wait([one.sentinel for one in at_work], timeout=min(one.remaining_s for one in at_work))
            for copy in [one for one in at_work if one.is_over]:
                trials.append(copy.end())
                tell(trials[-1])
                at_work.remove(copy)
                free.append(copy)
    return trials


def import_libraries() -> None:
    """Import what the forks need.

    Raises:
        RuntimeError: a library has imported repot, and each fork would have it without its defect.
    """
    for name in _LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(name)
    if "repot" in sys.modules:
        message = "the code as it is has been imported, and no defect would be seen"
        raise RuntimeError(message)


@contextmanager
def _copies(number: int, options: Iterable[str]) -> Iterator[list[Copy]]:
    """Make copies in a directory that is gone afterwards, with all processes of theirs."""
    with tempfile.TemporaryDirectory(prefix="repot-mutants-") as directory:
        made = [Copy(Path(directory) / str(one), options) for one in range(number)]
        try:
            yield list(made)
        finally:
            for one in made:
                one.stop()
