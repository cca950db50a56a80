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
        if not self.path.exists():
            return []
        lines = self.path.read_text().splitlines(keepends=True)
        happenings = [Happening(*json.loads(line)) for line in lines if line.endswith("\n")]
        return sorted(happenings, key=lambda happening: happening.at)
