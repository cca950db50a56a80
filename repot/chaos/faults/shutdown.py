"""Ask the worker to shut down."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.faults.no_preparation import NoPreparation
from repot.chaos.instruments.failpoints import Phase
from repot.chaos.scenarios.scenario import Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.faults.context import FaultContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown(NoPreparation):
    """Send the worker a signal to shut down without waiting; start it again on leaving, once it has ended.

    Attributes:
        warm: SIGTERM: the worker finishes its running tasks. Otherwise SIGQUIT: a soft shutdown with Celery's
            `worker_soft_shutdown_timeout`, a cold one without.
    """

    warm: bool = True

    @property
    def description(self) -> str:
        """Return what the fault does, for reports."""
        return "the worker is asked to shut down, " + ("warm (SIGTERM)" if self.warm else "soft (SIGQUIT)")

    @contextmanager
    def injected(self, context: FaultContext) -> Iterator[None]:
        """Send the signal; wait for the exit on leaving, and start the worker again."""
        context.target.signal(signal.SIGTERM if self.warm else signal.SIGQUIT)
        try:
            yield
            context.target.await_exit()
        finally:
            context.target.start_again()


SCENARIOS = (
    Scenario(
        "warm-shutdown",
        "The worker gets SIGTERM while the task runs",
        "It ends when the task has ended.",
        Shutdown(warm=True),
        Phase.RUNNING,
        lasts_s=2,
        works_s=1,
        stills_worker=True,
        any_instant=True,
    ),
    Scenario(
        "soft-shutdown",
        "The worker gets SIGQUIT while the task runs for longer than the soft shutdown timeout",
        "With late acks the running task returns to the queue; with early acks it is lost.",
        Shutdown(warm=False),
        Phase.RUNNING,
        lasts_s=2,
        works_s=6,
        stills_worker=True,
    ),
)
