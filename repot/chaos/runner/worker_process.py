"""A worker of an experiment: start it, signal it, check it, and start it again as a supervisor does."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import psutil

from repot.errors import ExperimentFailed
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from signal import Signals
    from threading import Event

    from repot.testbed import ReapedProcess

READY_WITHIN_S = 90
_GONE_WITHIN_S = 30


class WorkerProcess:
    """One worker with at most one process at a time."""

    def __init__(
        self, name: str, start: Callable[[], ReapedProcess], ready_count: Callable[[], int], stop: Event
    ) -> None:
        """Start the process by `start`; `ready_count` returns how often a process of this worker was ready so far."""
        self.name = name
        self._start = start
        self._ready_count = ready_count
        self._stop = stop
        self._ready_before = ready_count()
        self.process = start()

    def await_ready(self) -> None:
        """Wait until the current process is ready.

        Raises:
            ExperimentFailed: it exited while starting.
        """

        def ready() -> bool:
            if self.process.exit_code is not None:
                message = f"{self.name} exited with {self.process.exit_code} while starting"
                raise ExperimentFailed(message, hint=f"Its last lines were:\n{self.process.log_tail()}")
            return self._ready_count() > self._ready_before

        wait_until(ready, within_s=READY_WITHIN_S, what=f"{self.name} is ready", stop=self._stop)

    @property
    def has_ended(self) -> bool:
        """Return whether the main process has ended."""
        return self.process.exit_code is not None

    def signal(self, number: Signals) -> None:
        """Send a signal to the main process."""
        self.process.signal(number)

    def pool_processes(self) -> list[psutil.Process]:
        """Return the processes of the pool."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop the main process (SIGSTOP), not its pool, while a `with` lasts."""
        with self.process.frozen():
            yield

    def await_exit(self) -> None:
        """Wait until the main process and its pool have ended."""
        wait_until(lambda: self.has_ended, within_s=_GONE_WITHIN_S, what=f"{self.name} ends", stop=self._stop)

    def launch_again(self) -> None:
        """Start the worker again if it has ended; do not wait."""
        if self.has_ended:
            self.process.stop()
            self._ready_before = self._ready_count()
            self.process = self._start()

    def start_again(self) -> None:
        """Start the worker again if it has ended; return when it is ready."""
        self.launch_again()
        self.await_ready()

    def stop(self) -> None:
        """End the worker."""
        self.process.stop()
