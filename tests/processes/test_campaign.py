"""What a run reports of its groups is true: what failed, what was unstable, what was left behind."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from campaign.groups import ROOT, Command, Group
from campaign.running import REPEATS, run_group
from campaign.state import Passed
from repot.waiting import wait_until

if TYPE_CHECKING:
    import pytest

    from campaign.running import Result


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
    assert "" == found.problem
    ((name, log),) = found.unstable.items()
    assert name.endswith("test_it.py::test_unstable")
    assert "the first time" in Path(log).read_text()
    assert REPEATS + 1 == len((tmp_path / "runs").read_text())
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
    assert "" == found.problem
    assert ["test_unstable"] == [name.rpartition("::")[2] for name in found.unstable]


def test_a_command_beside_that_fails_fails_its_group(tmp_path: Path) -> None:
    good, bad = (Command((sys.executable, "-c", f"raise SystemExit({code})")) for code in (0, 3))
    found = run_group(Group("one", "", (good,), beside=(bad, good)), tmp_path, repeats=True)
    assert found.problem.startswith(f"failed: {sys.executable} -c")


def test_without_repeats_the_first_failure_counts(tmp_path: Path) -> None:
    found = run_pytest(tmp_path, ONCE, repeats=False)
    assert "ended with 1" in found.problem
    assert {} == found.unstable


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
    passed = Passed(tmp_path / "state.json")
    passed.add("one", run_group(Group("one", "", (Command((sys.executable, "-c", "")),)), tmp_path, repeats=True))
    assert {"one"} == set(Passed(tmp_path / "state.json").groups)
    new = ROOT / "tests" / "campaign" / "new-file"
    new.touch()
    try:
        assert {} == Passed(tmp_path / "state.json").groups
    finally:
        new.unlink()
