"""Processes append whole lines to one journal. A task waits at a set failpoint."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING

from repot.chaos.instruments.failpoints import Failpoints, Phase
from repot.chaos.instruments.journal import NEVER_RELEASED, REACHED, RELEASED, Journal

if TYPE_CHECKING:
    from pathlib import Path

LINES = 200


def _write_many(path: Path, name: str) -> None:
    for number in range(LINES):
        Journal(path).write("line", name, str(number), padding="x" * 300)


def test_processes_do_not_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        for done in [pool.submit(_write_many, path, name) for name in "abc"]:
            done.result()
    found = Journal(path).read()
    assert {(name, str(number)) for name in "abc" for number in range(LINES)} == {
        (line.worker, line.task) for line in found
    }
    assert len(found) == 3 * LINES
    assert sorted(line.at for line in found) == [line.at for line in found]


def test_a_line_being_written_is_not_read_yet(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    Journal(path).write("whole", "w")
    with path.open("a") as file:
        file.write('[1.0, "half", ')
    assert [line.kind for line in Journal(path).read()] == ["whole"]


def test_no_journal_yet_has_no_event(tmp_path: Path) -> None:
    assert Journal(tmp_path / "none").read() == []


def test_a_task_that_is_never_released_continues_and_the_journal_says_so(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    failpoints = Failpoints(journal, max_wait_s=0.05)
    failpoints.set(Phase.RUNNING, "a")
    failpoints.reach(Phase.RUNNING, "a", "w")
    failpoints.reach(Phase.RUNNING, "b", "w")
    assert [(line.kind, line.task) for line in journal.read()] == [
        (REACHED, "a"),
        (NEVER_RELEASED, "a"),
        (RELEASED, "a"),
    ]
