"""Do the parts of a run in processes of their own: Python runs one thread at a time.

All jobs use the run's fencing token, and the journal counts each queue by itself, so they need not know each other. A
job ends after its window when the process that started it has ended.
"""

from __future__ import annotations

import multiprocessing
import os
from contextlib import suppress
from dataclasses import replace
from multiprocessing import connection
from threading import Event, Thread
from typing import TYPE_CHECKING

from repot.errors import MoveStopped, RepotError
from repot.waiting import stop_on_signal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

    from repot.migrate.run import Run

_LOOK_S = 1.0
#: A part of an order may have the functions of an application, which cannot be sent to another process.
_CONTEXT = multiprocessing.get_context("fork")


def do_in_jobs(parts: Sequence[Callable[[Run], None]], run: Run) -> None:
    """Call each part with the run, all at the same time; end all of them when one fails.

    Raises:
        RepotError: the first failure of a part.
        MoveStopped: a job was killed.
    """
    jobs: dict[Connection, _Job] = {}
    failures: list[RepotError] = []
    try:
        for part in parts:
            job = _Job(part, run)
            jobs[job.heard] = job
        while jobs:
            for ready in connection.wait(list(jobs), _LOOK_S):
                assert not isinstance(ready, int)
                failures += _listen(jobs, ready, run)  # type: ignore[arg-type]
            if failures or run.stop.is_set():
                for job in jobs.values():
                    job.stop()
    finally:
        for job in jobs.values():
            job.stop()
            job.process.join()
    if failures:
        raise failures[0]


class _Job:
    def __init__(self, part: Callable[[Run], None], run: Run) -> None:
        self.heard, saying = _CONTEXT.Pipe(duplex=False)
        self.process = _CONTEXT.Process(target=_work, args=(part, run, saying, os.getpid()))
        self.process.start()
        # so that the end of the job is the end of what is heard
        saying.close()
        self._is_stopping = False

    def stop(self) -> None:
        """Let the job end after its window; a second signal would end it at once."""
        if not self._is_stopping:
            self._is_stopping = True
            self.process.terminate()


def _listen(jobs: dict[Connection, _Job], heard: Connection, run: Run) -> list[RepotError]:
    """Take what a job says: its progress, or how it failed; return its failures."""
    try:
        report = heard.recv()
    except EOFError:
        job = jobs.pop(heard)
        job.process.join()
        if not job.process.exitcode:
            return []
        message = f"a job of the move ended with exit code {job.process.exitcode}"
        return [MoveStopped(message, hint="`repot move resume` goes on; nothing is lost.")]
    if isinstance(report[0], str):
        run.progress(*report)
        return []
    kind, message, hint = report
    error = kind.__new__(kind)
    RepotError.__init__(error, message, hint=hint)
    return [error]


def _work(part: Callable[[Run], None], run: Run, saying: Connection, parent: int) -> None:
    stop = Event()

    def say(*words: object) -> None:
        # there is no listener once the other process has ended
        with suppress(OSError):
            saying.send(words)

    def end_with_parent() -> None:
        while os.getppid() == parent:
            stop.wait(_LOOK_S)
        stop.set()

    with stop_on_signal(stop):
        Thread(target=end_with_parent, daemon=True).start()
        try:
            part(replace(run, stop=stop, progress=say))
        except RepotError as error:
            say(type(error), error.message, error.hint)
