"""Kill the processes of a worker's pool."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from repot.chaos.faults.context import PREFORK
from repot.chaos.faults.no_preparation import NoPreparation
from repot.chaos.instruments.failpoints import Phase
from repot.chaos.scenarios.scenario import Scenario
from repot.errors import ExperimentFailed, NotApplicable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from repot.chaos.faults.context import FaultContext


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildKilled(NoPreparation):
    """Kill every process of the pool with SIGKILL, as the kernel does when memory runs out.

    The main process replaces them. If it has ended instead, it is started again on leaving.
    """

    description: str = "the processes of the worker's pool are killed (SIGKILL)"

    def prepared(self, context: FaultContext) -> AbstractContextManager[None]:
        """Refuse a pool without processes.

        Raises:
            NotApplicable: names the pool.
        """
        if context.pool != PREFORK:
            message = f"the pool {context.pool} has no processes that could be killed"
            raise NotApplicable(message)
        return NoPreparation.prepared(self, context)  # `slots` makes another class, which `super()` does not know

    @contextmanager
    def injected(self, context: FaultContext) -> Iterator[None]:
        """Kill the processes of the pool.

        Raises:
            ExperimentFailed: the pool has no process.
        """
        pool = context.target.pool_processes()
        if not pool:
            message = "the pool of the target worker has no process"
            raise ExperimentFailed(message)
        try:
            for process in pool:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            yield
        finally:
            context.target.start_again()


SCENARIOS = (
    Scenario(
        "child-killed",
        "A process of the pool is killed while the task runs, as the kernel does when memory runs out",
        "Celery acknowledges such a task as failed, also with late acks: it is lost, unless a setting makes it "
        "requeue.",
        ChildKilled(),
        Phase.RUNNING,
        lasts_s=0,
        works_s=1,
        smoke=True,
        any_instant=True,
    ),
    Scenario(
        "child-killed-after-effect",
        "A process of the pool is killed when the effect has happened",
        "Requeueing tasks of lost processes repeats the effect; the guard does not.",
        ChildKilled(),
        Phase.AFTER_EFFECT,
        lasts_s=0,
    ),
)
