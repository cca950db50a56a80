"""A worker of an experiment: started, harmed, found dead or alive, and started again as a supervisor does."""

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

    from repot.brokers.local import GuardedProcess

READY_WITHIN_S = 90
_GONE_WITHIN_S = 30


class Struck:
    """One worker, of which one process at a time lives."""

    def __init__(self, name: str, start: Callable[[], GuardedProcess], readies: Callable[[], int], stop: Event) -> None:
        """Take `start`, which starts the process, and `readies`, which counts how often one has said it is ready."""
        self.name = name
        self._start = start
        self._readies = readies
        self._stop = stop
        self._awaited = readies()
        self.process = start()

    def await_ready(self) -> None:
        """Return once the present process is ready.

        Raises:
            ExperimentFailed: it ended while it started.
        """

        def ready() -> bool:
            if self.process.exit_code is not None:
                message = f"{self.name} exited with {self.process.exit_code} while starting"
                raise ExperimentFailed(message, hint=f"Its last lines were:\n{self.process.log_tail()}")
            return self._readies() > self._awaited

        wait_until(ready, within_s=READY_WITHIN_S, what=f"{self.name} is ready", stop=self._stop)

    @property
    def has_ended(self) -> bool:
        """Whether its main process is gone."""
        return self.process.exit_code is not None

    def signal(self, number: Signals) -> None:
        """Send a signal to its main process."""
        self.process.signal(number)

    def pool(self) -> list[psutil.Process]:
        """The processes of its pool."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop its main process, not its pool, for as long as a `with` lasts."""
        with self.process.frozen():
            yield

    def gone(self) -> None:
        """Wait until the main process has ended, and its pool with it."""
        wait_until(lambda: self.has_ended, within_s=_GONE_WITHIN_S, what=f"{self.name} ends", stop=self._stop)

    def launch_again(self) -> None:
        """Start it anew if it has ended; do not wait."""
        if self.has_ended:
            self.process.stop()
            self._awaited = self._readies()
            self.process = self._start()

    def start_again(self) -> None:
        """Start it anew if it has ended, and return once it is ready."""
        self.launch_again()
        self.await_ready()

    def stop(self) -> None:
        """End it, whatever it does."""
        self.process.stop()
