"""A campaign of experiments in a thread of its own, whose results tests take as they come.

The time limit of a test is then for the experiments that it waits for, and not for a whole campaign in a fixture: that
takes as long as the machine is busy.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Condition, Event
from typing import TYPE_CHECKING

from repot.chaos.runner import campaign

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.report.result import Campaign, Cell, Result, Unmeasured
    from repot.chaos.runner.campaign import Plan
    from repot.chaos.runner.case import Case


class Silence:
    """Progress that is not shown."""

    def serves(self, product: str, version: str, variable: str, url: str) -> None:
        """Do nothing."""

    def step(self, case: Case, text: str) -> None:
        """Do nothing."""

    def result(self, result: Result | Unmeasured) -> None:
        """Do nothing."""


class RunningCampaign(Silence):
    """A campaign that runs, and the results that it has so far; of each cell one."""

    def __init__(self, plan: Plan, jobs: int, thread: ThreadPoolExecutor) -> None:
        """Begin."""
        self._changed, self._stop = Condition(), Event()
        self._results: dict[Cell, Result | Unmeasured] = {}
        self._running = thread.submit(campaign.run, plan, jobs=jobs, progress=self, stop=self._stop)
        self._running.add_done_callback(lambda _: self._note({}))

    def stop(self) -> None:
        """Ask it to end what it runs."""
        self._stop.set()

    def result(self, result: Result | Unmeasured) -> None:
        """Keep a result for who waits for it."""
        self._note({result.cell: result})

    def wait_for(self, cell: Cell) -> Result | Unmeasured:
        """Return what the experiment of a cell gives, once it has ended."""
        with self._changed:
            self._changed.wait_for(lambda: cell in self._results or self._running.done())
            if cell not in self._results:
                self._running.result()  # raises what has ended it
            return self._results[cell]

    def wait(self) -> Campaign:
        """Return the whole campaign, once it has ended."""
        return self._running.result()

    def _note(self, results: dict[Cell, Result | Unmeasured]) -> None:
        with self._changed:
            self._results |= results
            self._changed.notify_all()


@contextmanager
def running(plan: Plan, jobs: int) -> Iterator[RunningCampaign]:
    """Run a campaign beside what happens in a `with`; stop it at the end."""
    with ThreadPoolExecutor(1) as thread:
        found = RunningCampaign(plan, jobs, thread)
        try:
            yield found
        finally:
            found.stop()
