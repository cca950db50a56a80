"""The worker is asked to leave."""

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
class Shutdown(Unprepared):
    """Ask the worker to leave, and go on without waiting; once it has left, start it again.

    Warm is SIGTERM: it finishes what it runs. Otherwise SIGQUIT: soft where Celery's
    `worker_soft_shutdown_timeout` says for how long, cold without.
    """

    warm: bool = True

    @property
    def what(self) -> str:
        """What it does."""
        return "the worker is asked to shut down, " + ("warmly (SIGTERM)" if self.warm else "soon (SIGQUIT)")

    @contextmanager
    def injected(self, place: Place) -> Iterator[None]:
        """Ask; see it gone on leaving, and start it again."""
        place.victim.signal(signal.SIGTERM if self.warm else signal.SIGQUIT)
        try:
            yield
            place.victim.gone()
        finally:
            place.victim.start_again()
