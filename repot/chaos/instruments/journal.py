"""The journal: one file of events to which all processes of an experiment append."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

READY = "ready"
DELIVERED = "delivered"
STARTED = "started"
EFFECT = "effect"
ENDED = "ended"
#: A task raised an exception, or Celery did after its run, as when its result cannot be stored (`internal`).
FAILED = "failed"
#: A process waits at a failpoint.
REACHED = "reached"
#: A process continues after it has waited at a failpoint.
RELEASED = "released"
#: A process waited at a failpoint for too long and continued.
NEVER_RELEASED = "never released"
#: A worker sent the task again, to be run at `due`.
POSTPONED = "postponed"
#: A process is about to send a message of a task, for the task `by`.
SENDING = "sending"
#: The message of a task was sent.
SENT = "sent"
#: A guard claimed the lease and runs the task.
CLAIMED = "claimed"
#: A guard found the effect done, and prevented a second one.
PREVENTED = "prevented"
#: A guard parked the task for a person to decide.
PARKED = "parked"
#: A worker logged a record at WARNING or above.
NOTICED = "noticed"
#: The main thread of a worker is not blocked; `due` is when each timer of its event loop runs next.
ALIVE = "alive"


@dataclass(frozen=True, slots=True)
class JournalEvent:
    """One line of the journal.

    Attributes:
        at: seconds of the machine's monotonic clock, which all its processes share.
        kind: one of the constants above.
    """

    at: float
    kind: str
    worker: str
    pid: int
    task: str = ""
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Journal:
    """An append-only file of events; a line is written whole or not at all."""

    path: Path

    def write(self, kind: str, worker: str, task: str = "", **details: Any) -> None:  # noqa: ANN401 - JSON values
        """Append one event."""
        line = json.dumps([monotonic(), kind, worker, os.getpid(), task, details]) + "\n"
        # one write to a file opened for appending is not mixed with another process' write
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def read(self) -> list[JournalEvent]:
        """Return all events so far, ordered by time."""
        return sorted(Follower(self).read(), key=lambda event: event.at)


class Follower:
    """Reads a growing journal, each line once."""

    def __init__(self, journal: Journal) -> None:
        self._path = journal.path
        self._position = 0
        self._events: list[JournalEvent] = []

    def read(self) -> list[JournalEvent]:
        """Return all events so far, in the order in which they were written."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._position)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._position += len(line)
                    self._events.append(JournalEvent(*json.loads(line)))
        return self._events
