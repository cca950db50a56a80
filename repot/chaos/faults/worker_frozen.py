"""Freeze the worker."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from repot.chaos.faults.no_preparation import NoPreparation
from repot.chaos.instruments.failpoints import Phase
from repot.chaos.scenarios.scenario import BEYOND_TIMEOUTS_S, Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.faults.context import FaultContext


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFrozen(NoPreparation):
    """Stop the main process and its pool (SIGSTOP), as a paused container or a machine that swaps does."""

    description: str = "the worker and its pool are frozen (SIGSTOP)"

    @contextmanager
    def injected(self, context: FaultContext) -> Iterator[None]:
        """Freeze them until the `with` ends."""
        # the main process first: it would replace a process of its pool
        with ExitStack() as stopped:
            stopped.enter_context(context.target.frozen())
            for process in context.target.pool_processes():
                with suppress(psutil.NoSuchProcess):
                    process.suspend()
                    stopped.callback(_resume, process)
            yield


def _resume(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.resume()


SCENARIOS = (
    Scenario(
        "worker-frozen",
        "The whole worker is frozen for longer than any timeout, then continues",
        "It continues beside the run that replaced it: leases and fencing tokens exist for this case.",
        WorkerFrozen(),
        Phase.RUNNING,
        lasts_s=BEYOND_TIMEOUTS_S,
        works_s=1,
        stills_worker=True,
        any_instant=True,
    ),
    Scenario(
        "frozen-rerun",
        "The whole worker is frozen, its task runs again on another worker, then the first continues",
        "With RERUN the effect may happen twice once the lease has expired, but only one run wins: the fencing token "
        "rejects the other.",
        WorkerFrozen(),
        Phase.RUNNING,
        lasts_s=BEYOND_TIMEOUTS_S,
        works_s=4,
        stills_worker=True,
        reruns=True,
    ),
)
