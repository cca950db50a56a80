"""What a fault acts on: the links, the target worker and the broker of one experiment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from random import Random
    from signal import Signals

    import psutil

    from repot.chaos.runner.proxies import Proxy
    from repot.testbed.test_broker import TestBroker


class TargetWorker(Protocol):
    """The worker that the fault is aimed at."""

    def signal(self, number: Signals) -> None:
        """Send a signal to the main process."""

    def pool_processes(self) -> list[psutil.Process]:
        """Return the processes of the pool."""

    def frozen(self) -> AbstractContextManager[None]:
        """Stop the main process (SIGSTOP), not its pool, while a `with` lasts."""

    def await_exit(self) -> None:
        """Wait until the main process and its pool have ended."""

    def start_again(self) -> None:
        """Start the worker again if it has ended, as a supervisor does; return when it is ready."""


#: Celery's pool of processes.
PREFORK = "prefork"


@dataclass(frozen=True, slots=True)
class FaultContext:
    """What an experiment passes to its fault.

    Attributes:
        link: the Toxiproxy link from the target worker to its broker.
        control_link: the Toxiproxy link from the control worker and the producer to the same broker.
        results_link: the Toxiproxy link from the target worker to its result backend; None where that is the
            application's own.
        target: the worker that the fault is aimed at.
        test_broker: the broker. A scenario that harms it must state `needs`, so that no other experiment uses it.
        queue: the queue of the task under test.
        tag: returns the delivery tag of the first delivery of the task under test, as the worker's transport names it.
        pool: the name of the workers' pool.
        rng: the source of all random choices of the fault, seeded by the run's seed and the case's name.
    """

    link: Proxy
    control_link: Proxy
    results_link: Proxy | None
    target: TargetWorker
    test_broker: TestBroker
    queue: str
    tag: Callable[[], str]
    rng: Random
    pool: str = PREFORK
