"""The worker stands still."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from repot.chaos.faults.unprepared import Unprepared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.place import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFrozen(Unprepared):
    """Stop the main process and its pool (SIGSTOP), as a paused container or a machine without memory does."""

    what: str = "the worker and its pool stand still (SIGSTOP)"

    @contextmanager
    def injected(self, place: Place) -> Iterator[None]:
        """Let them stand still until the `with` ends."""
        # the main process first: it would replace a process of its pool
        with ExitStack() as stopped:
            stopped.enter_context(place.victim.frozen())
            for process in place.victim.pool():
                with suppress(psutil.NoSuchProcess):
                    process.suspend()
                    stopped.callback(_resume, process)
            yield


def _resume(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.resume()
