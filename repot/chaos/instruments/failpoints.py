"""Failpoints: named phases of a task's run where a process waits, so that a fault meets the task there.

A set failpoint is a file beside the journal. A process that reaches it writes `REACHED` to the
journal and waits until the file is removed.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from repot.chaos.instruments.journal import NEVER_RELEASED, REACHED, RELEASED, Journal
from repot.errors import DeadlineExceeded
from repot.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

#: A task that waits at a failpoint continues after this many seconds.
MAX_WAIT_S = 120


class Phase(StrEnum):
    """A phase of a task's run in a worker, in order."""

    #: Delivered by the broker, not yet read by the worker.
    BEFORE_RECEIVE = "before-receive"
    #: The worker's main process has the message; no pool process has it.
    RECEIVED = "received"
    #: A pool process is about to run the task.
    STARTED = "started"
    #: The body of the task runs.
    RUNNING = "running"
    #: A retry is about to be sent.
    RETRY_PUBLISH = "retry-publish"
    #: The effect has happened; nothing is stored.
    AFTER_EFFECT = "after-effect"
    #: The result is about to be stored.
    RESULT_STORE = "result-store"
    #: The pool process is done with the task; a late ACK is about to be sent.
    BEFORE_ACK = "before-ack"
    #: The broker holds no message of the task any more.
    AFTER_ACK = "after-ack"


@dataclass(frozen=True, slots=True)
class Failpoints:
    """The failpoints of one experiment."""

    journal: Journal
    max_wait_s: float = MAX_WAIT_S

    def set(self, phase: Phase, task: str) -> None:
        """Make every process that reaches this phase with this task wait."""
        path = self._path(phase, task)
        path.parent.mkdir(exist_ok=True)
        path.touch()

    def clear(self, phase: Phase, task: str) -> None:
        """Remove the failpoint and release the processes that wait there."""
        self._path(phase, task).unlink(missing_ok=True)

    def make_deadly(self, task: str) -> None:
        """Make every process that runs this task kill itself instead."""
        path = self._path("deadly", task)
        path.parent.mkdir(exist_ok=True)
        path.touch()

    def die_if_deadly(self, task: str) -> None:
        """Kill the own process, as the kernel does when memory runs out, if the task is deadly."""
        if self._path("deadly", task).exists():
            os.kill(os.getpid(), signal.SIGKILL)

    def reach(self, phase: Phase, task: str, worker: str) -> None:
        """Return at once, or wait while the failpoint is set; a wait that is too long is no error of the task."""
        path = self._path(phase, task)
        if path.exists():
            self.journal.write(REACHED, worker, task, phase=phase)
            try:
                wait_until(lambda: not path.exists(), within_s=self.max_wait_s, what=f"{task} is released at {phase}")
            except DeadlineExceeded:
                self.journal.write(NEVER_RELEASED, worker, task, phase=phase)
            self.journal.write(RELEASED, worker, task, phase=phase)

    def _path(self, phase: str, task: str) -> Path:
        return self.journal.path.with_suffix(".failpoints") / f"{phase}.{task}"
