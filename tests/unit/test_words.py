"""The lint of words: what the glossary refuses turns it red, with the place and what to write.

`make lint` runs it on the project.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def lint(root: Path, *paths: str) -> list[str]:
    ran = subprocess.run(
        [sys.executable, ROOT / "scripts" / "words", *paths], cwd=root, capture_output=True, text=True, check=False
    )
    assert ran.stderr == ""
    assert ran.returncode == (1 if ran.stdout else 0)
    return ran.stdout.splitlines()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "repot").mkdir()
    shutil.copy(ROOT / "docs" / "glossary.md", tmp_path / "docs")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ('"""Plain."""\n# Nobody reads it.\n', 2, "'Nobody': write the actor"),
        ('"""A value that\nis none."""\n', 2, "'is none': write"),
        ('"""It waits so\n# that it ends."""\n', 1, "'so # that it': write"),
        ('"""It waits, too."""\n', 1, "', too': write"),
        ('"""Plain."""\nHINT = "It is told the address."\n', 2, "'is told': write"),
        ('"""Plain."""\nlast_pulse_s = 1\n', 2, "'pulse': write status file"),
        ('"""Plain."""\n\n\nclass PulseReader: ...\n', 4, "'Pulse': write status file"),
        ('"""Plain."""\nkept_s = 1\n', 2, "'kept_s': write `retention_s`"),
        ('"""Plain."""\nBODY = {"fence": 1}\n', 2, "'fence': write fencing token"),
        ('"""See `repot dead list`."""\n', 1, "'repot dead': write `repot dlq`"),
        ('"""A letter of this queue."""\n', 1, "'letter': write dead letter"),
        ('"""Set WORKER_PULSE_FOLDER."""\n', 1, "write status file, status writer, `WORKER_STATUS_DIR`"),
    ],
)
def test_a_refused_term_is_found_with_its_line(project: Path, text: str, line: int, found: str) -> None:
    (project / "repot" / "one.py").write_text(text)
    assert [one for one in lint(project) if one.startswith(f"repot/one.py:{line}: ") and found in one]


def test_tests_are_read_and_a_path_may_use_a_word_in_another_sense(project: Path) -> None:
    for name in ("test_private_servers.py", "test_other.py"):
        path = project / "tests" / "servers" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('"""Run as the user nobody."""\n')
    assert lint(project) == [
        "tests/servers/test_other.py:1: 'nobody': write the actor: the user, the operator, no process"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "A dead letter, dead_letters and dead-letter queues.",
        "It is too late; two workers, too many tasks.",
        "if value is None: heartbeat, background, scapulars, a fence around a garden",
        "The sweep restores messages; a word about stories.",
    ],
)
def test_words_that_only_look_like_refused_ones_pass(project: Path, text: str) -> None:
    (project / "docs" / "one.md").write_text(text + "\n")
    assert lint(project) == []


def test_only_the_named_paths_are_read(project: Path) -> None:
    (project / "README.md").write_text("Nobody.\n")
    assert lint(project, "docs") == []
    assert lint(project, "README.md") == ["README.md:1: 'Nobody': write the actor: the user, the operator, no process"]


@pytest.mark.parametrize(
    "term", ["dlq", "lease", "fencing token", "failpoint", "status file", "testbed", "dead-lettering", "upstream"]
)
def test_the_glossary_names_the_room_of_a_term(term: str) -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text().partition("## Replaced terms")[0]
    (row,) = [line for line in glossary.splitlines() if line.startswith(f"| {term} |")]
    rooms = re.findall(r"\(\.\./(repot/[^)]+)\)", row)
    assert rooms
    assert all((ROOT / room).exists() for room in rooms)
