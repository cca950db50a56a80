"""What a run reports of its groups is true: what failed, what was unstable, what was left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread

import psutil
import pytest

from campaign.groups import Command, Group
from campaign.lanes import Lanes
from campaign.running import REPEATS, Result, prepare, run_group
from campaign.state import Results
from repot.waiting import wait_until


def run_pytest(tmp_path: Path, text: str, *, repeats: bool = True) -> Result:
    """Run a group of one file of tests."""
    (tmp_path / "test_it.py").write_text(text)
    test = tmp_path / "test_it.py"
    words = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--noconftest", str(test))
    return run_group(Group("one", "", (Command(words, sys.executable),)), tmp_path, repeats=repeats)


ONCE = """
from pathlib import Path
def test_unstable():
    with (Path(__file__).parent / "runs").open("a") as runs:
        runs.write("x")
    assert runs.name and (Path(__file__).parent / "runs").read_text() != "x", "the first time"
def test_stable():
    pass
"""


def test_a_test_that_fails_once_is_unstable_and_its_first_log_is_kept(tmp_path: Path) -> None:
    found = run_pytest(tmp_path, ONCE)
    assert found.problem == ""
    ((name, log),) = found.unstable.items()
    assert name.endswith("test_it.py::test_unstable")
    assert "the first time" in Path(log).read_text()
    assert len((tmp_path / "runs").read_text()) == REPEATS + 1
    assert found.tests.startswith("1 failed, 1 passed")


ERROR_ONCE = (
    ONCE.replace(
        "def test_unstable():",
        """import pytest
@pytest.fixture
def once():""",
    )
    + """
def test_unstable(once):
    pass
"""
)


def test_an_error_of_a_fixture_is_repeated_as_well(tmp_path: Path) -> None:
    found = run_pytest(tmp_path, ERROR_ONCE)
    assert found.problem == ""
    assert [name.rpartition("::")[2] for name in found.unstable] == ["test_unstable"]


def test_a_command_beside_that_fails_fails_its_group(tmp_path: Path) -> None:
    good, bad = (Command((sys.executable, "-c", f"raise SystemExit({code})")) for code in (0, 3))
    found = run_group(Group("one", "", (good,), beside=(bad, good)), tmp_path, repeats=True)
    assert found.problem.startswith(f"failed: {sys.executable} -c")


def test_without_repeats_the_first_failure_counts(tmp_path: Path) -> None:
    found = run_pytest(tmp_path, ONCE, repeats=False)
    assert "ended with 1" in found.problem
    assert found.unstable == {}


def test_a_group_of_which_all_is_skipped_has_not_passed(tmp_path: Path) -> None:
    """It runs again once there is what it needs."""
    found = run_pytest(tmp_path, "import pytest\ndef test_on_docker():\n    pytest.skip('no Docker engine')\n")
    assert found.problem == ""
    # pytest may count a warning as well
    assert found.skipped.startswith("1 skipped")
    results = Results(tmp_path)
    results.add("one", found)
    assert None is results.passed("one")


def test_a_test_that_fails_again_is_named(tmp_path: Path) -> None:
    found = run_pytest(tmp_path, "def test_broken():\n    assert False\n")
    assert re.fullmatch(r"failed again when repeated: \S*test_it\.py::test_broken", found.problem)


def test_a_file_that_cannot_be_imported_is_not_repeated(tmp_path: Path) -> None:
    assert "ended with 2" in run_pytest(tmp_path, "import nothing_of_this_name\n").problem


LEFT = """
import subprocess, sys, tempfile
tempfile.mkdtemp(prefix="kept-")
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
"""


def test_what_a_group_leaves_behind_fails_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("campaign.leftovers._GONE_WITHIN_S", 0.1)
    found = run_group(Group("one", "", (Command((sys.executable, "-c", LEFT)),)), tmp_path, repeats=True)
    assert re.search(r"left behind: process \d+: .*time\.sleep\(60\), file \S*kept-", found.problem)
    pid = int(re.search(r"process (\d+)", found.problem)[1])  # type: ignore[index] # as matched above
    wait_until(lambda: not psutil.pid_exists(pid), within_s=10, what="the process is gone")


def test_a_group_that_passed_is_remembered_until_a_file_changes(tmp_path: Path) -> None:
    # not the checkout itself: other tests ask whether its groups have passed
    root = tmp_path / "checkout"
    subprocess.run(["git", "init", "--quiet", root], check=True)
    results = Results(tmp_path, root)
    results.add("one", run_group(Group("one", "", (Command((sys.executable, "-c", "")),)), tmp_path, repeats=True))
    results.add("two", Result("it failed"))
    assert Results(tmp_path, root).passed("one")
    assert None is Results(tmp_path, root).passed("two")
    (root / "new-file").touch()
    assert None is Results(tmp_path, root).passed("one")
    assert Results(tmp_path, root).last("one")


#: Installs for as long as a file is missing.
INSTALLS = """#!/usr/bin/env bash
touch "$0.begun"
until [ -e "$0.go" ]; do read -rt 0.02 <> <(:) || true; done
"""


def test_a_group_waits_for_no_script_that_it_does_not_need(tmp_path: Path) -> None:
    slow, quick = tmp_path / "slow", tmp_path / "quick"
    for script, text in ((slow, INSTALLS), (quick, "#!/bin/sh\n")):
        script.write_text(text)
        script.chmod(0o755)
    needs_slow, needs_quick = (Group(one.name, "", (), ((str(one),),)) for one in (slow, quick))
    with ThreadPoolExecutor(2) as pool:
        try:
            installing = pool.submit(prepare, needs_slow, tmp_path)
            wait_until((tmp_path / "slow.begun").exists, within_s=60, what="the slow one installs")
            assert [pool.submit(prepare, one, tmp_path).result(60) for one in (needs_quick, Group("", "", ()))] == [
                "",
                "",
            ]
            assert not installing.done()
        finally:
            (tmp_path / "slow.go").touch()
        assert installing.result(60) == ""


#: Runs a group by its name: it waits for the other one, dies, or waits to be interrupted.
PROGRAM = """
import sys, time
from pathlib import Path
from campaign.lanes import Lanes
from campaign.running import Result
from campaign.state import Results
directory, name = Path(sys.argv[1]), sys.argv[2]
print("begins")
(directory / f"begun-{name}").touch()
try:
    if name == "dies":
        sys.exit(7)
    while name == "waits" or not (directory / "begun-one").exists() or not (directory / "begun-two").exists():
        time.sleep(0.02)
except KeyboardInterrupt:
    (directory / f"interrupted-{name}").touch()
    raise
Results(directory).add(name, Result())
"""


def lanes(tmp_path: Path, number: int, *groups: Group) -> tuple[Lanes, Results]:
    """Prepare to run groups by that program."""
    results = Results(tmp_path)
    return Lanes(groups, results, tmp_path, [sys.executable, "-c", PROGRAM, str(tmp_path)], number), results


def test_two_lanes_run_beside_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running, results = lanes(tmp_path, 2, Group("one", "", ()), Group("two", "", ()))
    running.run()
    assert results.passed("one")
    assert results.passed("two")
    assert sorted(capsys.readouterr().out.splitlines()) == ["one          | begins", "two          | begins"]


def test_a_group_whose_program_dies_has_failed_and_the_next_one_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "begun-two").touch()
    running, results = lanes(tmp_path, 1, Group("dies", "", ()), Group("one", "", ()))
    results.add("dies", Result())
    running.run()
    assert Result("its program ended with 7") == results.last("dies")
    assert results.passed("one")
    # one lane has no prefix
    assert capsys.readouterr().out == "begins\nbegins\n"


def test_an_interrupt_reaches_each_lane_and_ends_it(tmp_path: Path) -> None:
    """The main thread has it; no group begins afterwards."""
    groups = [Group(name, "", ()) for name in ("waits", "two", "one")]
    running, results = lanes(tmp_path, 2, *groups)

    def interrupt() -> None:
        wait_until((tmp_path / "begun-waits").exists, within_s=20, what="it has begun")
        os.kill(os.getpid(), signal.SIGINT)

    sending = Thread(target=interrupt)
    sending.start()
    with pytest.raises(KeyboardInterrupt):
        running.run()
    sending.join()
    assert (tmp_path / "interrupted-waits").exists()
    assert not (tmp_path / "begun-one").exists()
    assert None is results.last("waits")
