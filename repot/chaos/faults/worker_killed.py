"""The worker's main process is killed."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.faults.unprepared import Unprepared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.place import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerKilled(Unprepared):
    """End the main process with SIGKILL, and its pool thereby; start it again on leaving."""

    what: str = "the worker is killed (SIGKILL)"

    @contextmanager
    def injected(self, place: Place) -> Iterator[None]:
        """Kill it, and see it gone."""
        try:
            place.victim.signal(signal.SIGKILL)
            place.victim.gone()
            yield
        finally:
            place.victim.start_again()
