"""The processes that run tasks are killed."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from repot.chaos.faults.unprepared import Unprepared
from repot.errors import ExperimentFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.place import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildKilled(Unprepared):
    """End every process of the pool with SIGKILL, as the kernel does where memory runs out.

    The main process puts others in their place; should it have ended instead, it is
    started again on leaving.
    """

    what: str = "the processes of the worker's pool are killed (SIGKILL)"

    @contextmanager
    def injected(self, place: Place) -> Iterator[None]:
        """Kill them.

        Raises:
            ExperimentFailed: there is none.
        """
        pool = place.victim.pool()
        if not pool:
            message = "the worker has no process in its pool to kill"
            raise ExperimentFailed(message)
        try:
            for process in pool:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            yield
        finally:
            place.victim.start_again()
