"""Run groups in lanes beside each other; a lane that is free takes the next group. Each is a program of its own."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Event, Lock
from typing import TYPE_CHECKING

from campaign.running import Result, child_environment, tee
from repot.errors import DeadlineExceeded, Interrupted
from support import forked, shared_rabbitmq

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from campaign.groups import Group
    from campaign.state import Results

#: Seconds; longer than what an interrupted program itself waits for.
_INTERRUPTED_WITHIN_S = 120


class Lanes:
    """Runs groups, and shows what they print, beside other lanes with the name of the group before each line."""

    def __init__(
        self, groups: Sequence[Group], results: Results, logs: Path, program: Sequence[str], lanes: int
    ) -> None:
        """Take the groups to run, the program that runs the one whose name it gets, and the number of lanes."""
        self._groups, self._next, self._lanes = groups, iter(groups), min(lanes, len(groups))
        self._results, self._logs, self._program = results, logs, program
        self._environment = child_environment()
        self._stop, self._printing = Event(), Lock()

    def run(self) -> None:
        """Run all groups; each one's result is then among the results."""
        with _shared(self._groups) as variables, ThreadPoolExecutor(self._lanes or 1) as threads:
            self._environment |= variables
            try:
                for lane in [threads.submit(self._run_lane) for _ in range(self._lanes)]:
                    lane.result()
            except BaseException:
                self._stop.set()
                raise

    def _run_lane(self) -> None:
        with suppress(Interrupted):
            for group in self._next:  # all lanes take from it
                if self._stop.is_set():
                    return
                self._run_group(group)

    def _run_group(self, group: Group) -> None:
        self._results.forget(group.name)
        log = self._logs / f"{group.name}.out"
        log.write_text("")
        shown = _Lines(f"{group.name:12} | " if self._lanes > 1 else "", self._printing)
        try:
            code = tee(
                [*self._program, group.name], log, self._environment, show=shown.add, stop=self._stop,
                interrupted_within_s=_INTERRUPTED_WITHIN_S,
            )  # fmt: skip
            problem = f"its program ended with {code}"
        except DeadlineExceeded as error:
            problem = str(error)
        finally:
            shown.close()
        if self._results.last(group.name) is None:
            self._results.add(group.name, Result(problem))


@contextmanager
def _shared(groups: Iterable[Group]) -> Iterator[dict[str, str]]:
    """Start what all groups share, if one of them may use it, and yield the variables that name it."""
    if not any(command.has_servers for group in groups for command in group.commands):
        yield {}
        return
    with forked.shared_by_a_run() as forks, shared_rabbitmq.shared_by_a_run() as rabbitmq:
        yield forks | rabbitmq


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
