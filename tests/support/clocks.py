"""A private Redis whose clock a test sets, as where an administrator or NTP sets that of its machine.

Timeouts of its event loop keep to the machine's monotonic clock.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from repot.testbed import executables

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis

_SOURCE = Path(__file__).with_name("clock.c")


class Clock:
    """The clock of the servers that `program` starts."""

    def __init__(self, directory: Path) -> None:
        """Make the program in a directory; the clock is the machine's at first."""
        compiler = shutil.which("cc")
        if sys.platform != "linux" or compiler is None:
            pytest.skip("another clock needs Linux and a C compiler")
        self._file, library = directory / "clock", directory / "clock.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE)], check=True)
        self._file.write_bytes(bytes(8))
        program = directory / "redis-server"
        program.write_text(
            f'#!/bin/sh\nexec env LD_PRELOAD={library} REPOT_CLOCK={self._file} {executables.REDIS.find()} "$@"\n'
        )
        program.chmod(0o755)
        self.program = str(program)

    def set(self, ahead_s: float) -> None:
        """Set the clock ahead of this machine's, or behind it; it is so at once."""
        with self._file.open("r+b", buffering=0) as file:
            file.write(struct.pack("q", round(ahead_s * 1e6)))


def clock_of(client: Redis) -> Callable[[], float]:
    """Return a function that reads the clock of a server, in seconds since 1970."""

    def now() -> float:
        seconds, microseconds = client.time()  # type: ignore[misc]
        return float(seconds + microseconds / 1e6)

    return now
