"""The program that tries the kept defects, on a repository of a few files: what it says, and what it leaves."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

from mutants.defects import AREAS, ROOT
from repot.config import inherited_environment
from repot.waiting import wait_until

#: The installed repot has no VALUE, and knows nothing of these defects.
FILES = {
    "repot/__init__.py": "VALUE = 1\n",
    "repot/chaos/__init__.py": "",
    "repot/chaos/plugin.py": "",  # of pytest
    "tests/test_it.py": """
import subprocess, sys
import repot

def test_here():
    assert repot.VALUE != 2

def test_a_process():
    code = "import repot; print(repot.VALUE)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() in "126789"

def test_hangs():
    if repot.VALUE == 6:
        subprocess.run(["sleep", "600"])
""",
    "tests/conftest.py": "def pytest_addoption(parser): parser.addoption('--group')",
    "tests/test_red.py": "def test_red(): raise AssertionError",
    "pyproject.toml": """
[tool.pytest]
addopts = ["--import-mode=importlib"]
""",
}


def entry(value: int, tests: str = "tests/test_it.py", old: str = "VALUE = 1", more: str = "") -> str:
    return f"""
[[defect]]
name = "it is {value}"
file = "repot/__init__.py"
old = "{old}"
new = "VALUE = {value}"
tests = ["{tests}"]
{more}
"""


def repository(root: Path, *entries: str) -> Path:
    """Make a repository with these defects of routing."""
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    lists = root / "tests" / "mutants" / "defects"
    shutil.copytree(ROOT / "tests" / "mutants", lists.parent, ignore=shutil.ignore_patterns("__pycache__"))
    for area in AREAS:
        (lists / f"{area}.toml").write_text("\n".join(entries) if area == "routing" else "")
    (root / "files").mkdir()
    return root


def command(root: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = inherited_environment(without=()) | {"PYTHONPATH": str(root / "tests"), "TMPDIR": str(root / "files")}
    line = [sys.executable, "-m", "mutants", *arguments]
    return subprocess.Popen(line, cwd=root, env=environment, stdout=-1, stderr=-2, text=True)


def tried(root: Path, *arguments: str) -> tuple[int, str]:
    program = command(root, *arguments)
    output, _ = program.communicate(timeout=120)
    assert list((root / "files").iterdir()) == []
    return program.returncode, output


def test_a_defect_is_caught_in_this_process_and_in_those_that_tests_start(tmp_path: Path) -> None:
    root = repository(tmp_path, entry(2), entry(3), entry(7, more='equivalent = "7 is as good as 1"'))
    code, output = tried(root)
    assert code == 0, output
    assert output.partition("it is 2")[0].splitlines()[-1].split()[0] == "caught"
    # seen by a process alone
    assert output.partition("it is 3")[0].splitlines()[-1].split()[0] == "caught"
    assert "it is 7: 7 is as good as 1" in output
    assert "3 defects: 2 caught, 1 equivalent" in output


def test_what_is_not_as_the_list_says_ends_it_with_4(tmp_path: Path) -> None:
    entries = [entry(8), entry(2, more='equivalent = "nothing sees it"'), entry(3, "tests/test_it.py::test_here[gone]")]
    # it would catch each defect
    entries += [entry(9, "tests/test_red.py")]
    code, output = tried(repository(tmp_path, *entries))
    assert code == 4, output
    for verdict, text in (
        ("STAYED GREEN", "it is 8"),
        ("ROTTEN", "it is 2: listed as equivalent, and caught"),
        ("ROTTEN", "it is 3: pytest could not run its tests (4)"),
        ("ROTTEN", "the code as it is: its tests are not green without a defect"),
    ):
        assert [line for line in output.splitlines() if line.startswith(verdict) and text in line], output


def test_the_list_is_shown_and_a_name_chooses(tmp_path: Path) -> None:
    root = repository(tmp_path, entry(2), entry(8))
    assert tried(root, "--list") == (0, "routing      it is 2\nrouting      it is 8\n")
    assert tried(root, "--list", "is 8") == (0, "routing      it is 8\n")
    assert tried(root, "--list", "routing") == (0, "routing      it is 2\nrouting      it is 8\n")


def test_an_entry_whose_text_is_gone_is_named_before_anything_is_tried(tmp_path: Path) -> None:
    code, output = tried(repository(tmp_path, entry(2, old="VALUE = 0"), entry(3)))
    text = "ROTTEN: it is 2: the old text stands 0 times in repot/__init__.py, and must stand there once\n"
    assert (4, text) == (code, output)


def test_a_signal_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    root = repository(tmp_path, entry(6))
    program = command(root)
    wait_until(lambda: _sleepers(root), within_s=60, what="a test hangs")
    program.send_signal(signal.SIGTERM)
    program.communicate(timeout=60)
    assert program.returncode == 130
    assert (list((root / "files").iterdir()), _sleepers(root)) == ([], [])


def _sleepers(root: Path) -> list[str]:
    """Return the processes that work in a repository's copies."""
    found = []
    for one in Path("/proc").iterdir():
        try:
            if one.name.isdecimal() and str(one.joinpath("cwd").readlink()).startswith(str(root / "files")):
                found.append((one / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return [one for one in found if one.startswith("sleep")]
