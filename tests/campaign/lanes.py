"""Run groups in lanes: one after another in each, the lanes beside each other, each group as a program of its own."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event, Lock
from typing import TYPE_CHECKING

from campaign.running import Result, child_environment, tee
from repot.errors import DeadlineExceeded, Interrupted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from campaign.groups import Group
    from campaign.state import Results

#: Seconds; longer than what an interrupted program itself waits for.
_INTERRUPTED_WITHIN_S = 120


class Lanes:
    """Runs groups, and shows what they print, beside other lanes with the name of the group before each line."""

    def __init__(self, groups: Sequence[Group], results: Results, logs: Path, program: Sequence[str]) -> None:
        """Take the groups to run, and the program that runs the one whose name it gets."""
        lanes = list(dict.fromkeys(group.lane for group in groups))
        self._lanes = [[group for group in groups if group.lane == lane] for lane in lanes]
        self._results, self._logs, self._program = results, logs, program
        self._stop, self._printing = Event(), Lock()

    def run(self) -> None:
        """Run all groups; each one's result is then among the results."""
        with ThreadPoolExecutor(len(self._lanes) or 1) as threads:
            try:
                for lane in [threads.submit(self._run_lane, lane) for lane in self._lanes]:
                    lane.result()
            except BaseException:
                self._stop.set()
                raise

    def _run_lane(self, groups: Sequence[Group]) -> None:
        with suppress(Interrupted):
            for group in groups:
                if self._stop.is_set():
                    return
                self._run_group(group)

    def _run_group(self, group: Group) -> None:
        self._results.forget(group.name)
        log = self._logs / f"{group.name}.out"
        log.write_text("")
        shown = _Lines(f"{group.name:12} | " if len(self._lanes) > 1 else "", self._printing)
        try:
            code = tee(
                [*self._program, group.name], log, child_environment(), show=shown.add, stop=self._stop,
                interrupted_within_s=_INTERRUPTED_WITHIN_S,
            )  # fmt: skip
            problem = f"its program ended with {code}"
        except DeadlineExceeded as error:
            problem = str(error)
        finally:
            shown.close()
        if self._results.last(group.name) is None:
            self._results.add(group.name, Result(problem))


class _Lines:
    """Prints what a program prints: line by line with a prefix, as it comes without."""

    def __init__(self, prefix: str, printing: Lock) -> None:
        self._prefix, self._printing, self._rest = prefix, printing, ""

    def add(self, text: str) -> None:
        if self._prefix:
            *lines, self._rest = (self._rest + text).split("\n")
            text = "".join(f"{self._prefix}{line}\n" for line in lines)
        with self._printing:
            sys.stdout.write(text)
            sys.stdout.flush()

    def close(self) -> None:
        if self._rest:
            self.add("\n")
