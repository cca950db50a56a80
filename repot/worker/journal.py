"""What happened to each task, in one file that many processes append to."""

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
#: A process waits at a closed gate.
HELD = "held"
#: Nobody opened the gate, and the process went on.
HELD_TOO_LONG = "held too long"
#: It was sent again by a worker, to be run at `due`.
POSTPONED = "postponed"
#: A guard let it run, under a claim.
CLAIMED = "claimed"
#: A guard set it aside for a person.
PARKED = "parked"
#: The log said that something is wrong.
NOTICED = "noticed"
#: The main loop goes round.
BEAT = "beat"


@dataclass(frozen=True, slots=True)
class Happening:
    """One line of the journal.

    `at` is the machine's monotonic clock in seconds, which its processes share.
    """

    at: float
    what: str
    worker: str
    pid: int
    task: str = ""
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Journal:
    """An append-only file of happenings; a line is written at once or not at all."""

    path: Path

    def write(self, what: str, worker: str, task: str = "", **details: Any) -> None:  # noqa: ANN401 - JSON values
        """Append one line."""
        line = json.dumps([monotonic(), what, worker, os.getpid(), task, details]) + "\n"
        # one write to a file opened for appending is not mixed with another process' write
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def read(self) -> list[Happening]:
        """All happenings so far, in the order of their time."""
        return sorted(Follower(self).read(), key=lambda happening: happening.at)


class Follower:
    """Reads a journal that grows, each line once."""

    def __init__(self, journal: Journal) -> None:
        self._path = journal.path
        self._position = 0
        self.seen: list[Happening] = []

    def read(self) -> list[Happening]:
        """All happenings so far, in the order in which they were written."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._position)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._position += len(line)
                    self.seen.append(Happening(*json.loads(line)))
        return self.seen
