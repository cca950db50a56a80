"""Where a task can be held on its way, so that a fault meets it at a known phase.

A gate is a file beside the journal: while it is there, the process that carries the
task to that phase says so in the journal and waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from repot.errors import DeadlineExceeded
from repot.waiting import wait_until
from repot.worker.journal import HELD, HELD_TOO_LONG, Journal

if TYPE_CHECKING:
    from pathlib import Path

#: A task that is held goes on after this many seconds, whatever happens.
LONGEST_HOLD_S = 120


class Phase(StrEnum):
    """A point on a task's way through a worker, in order."""

    #: Handed over by the broker, and not yet read by the worker.
    BEFORE_RECEIVE = "before-receive"
    #: The worker's main process has the message; no process of the pool has it.
    RECEIVED = "received"
    #: A process of the pool is about to run it.
    STARTED = "started"
    #: In the middle of its work.
    RUNNING = "running"
    #: A retry is about to be sent.
    RETRY_PUBLISH = "retry-publish"
    #: The effect has happened; nothing is stored.
    AFTER_EFFECT = "after-effect"
    #: The result is about to be stored.
    RESULT_STORE = "result-store"
    #: All is done in the pool; the ACK of a late-acknowledging task is to be sent.
    BEFORE_ACK = "before-ack"
    #: The broker holds nothing of it any more.
    AFTER_ACK = "after-ack"


@dataclass(frozen=True, slots=True)
class Gates:
    """The gates of one journal."""

    journal: Journal
    longest_s: float = LONGEST_HOLD_S

    def close(self, phase: Phase, task: str) -> None:
        """Let the first process that carries this task to the phase wait there, and any other behind it."""
        path = self._path(phase, task)
        path.parent.mkdir(exist_ok=True)
        path.touch()

    def open(self, phase: Phase, task: str) -> None:
        """Let whoever waits go on; nobody waits there any more."""
        self._path(phase, task).unlink(missing_ok=True)

    def arrive(self, phase: Phase, task: str, worker: str) -> None:
        """Go through, or wait while the gate is closed; a task does not fail for having waited too long."""
        path = self._path(phase, task)
        if path.exists():
            self.journal.write(HELD, worker, task, phase=phase)
            try:
                wait_until(lambda: not path.exists(), within_s=self.longest_s, what=f"{phase} of {task} may go on")
            except DeadlineExceeded:
                self.journal.write(HELD_TOO_LONG, worker, task, phase=phase)

    def _path(self, phase: Phase, task: str) -> Path:
        return self.journal.path.with_suffix(".gates") / f"{phase}.{task}"
