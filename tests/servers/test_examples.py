"""The examples and the tutorial for a task that ran twice, each run as its page says, on private servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.page_programs import HANGS_AFTER_S, ROOT, require_nothing_left, running, typed_by, typed_on
from support.releases import needs

if TYPE_CHECKING:
    from pathlib import Path

PAGES = sorted((ROOT / "examples").glob("*/README.md"))

#: Each page has a judge that compares durations.
pytestmark = [
    pytest.mark.xdist_group("examples"),
    needs("celery", "5.5", "the doctor's lines on the pages are of releases with a soft shutdown"),
]


@pytest.mark.promise("script")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_an_example_runs_as_its_readme_says(own_directory: Path, page: Path) -> None:
    """Adopted, flipped, moved by canary, and one effect although a worker was killed."""
    before = sorted(page.parent.rglob("*"))
    with running(own_directory, str(page)) as process:
        shown, _ = process.communicate(timeout=HANGS_AFTER_S)
    assert process.returncode == 0, shown
    assert typed_on(page.read_text()) == typed_by(shown)
    assert "kill -9" in shown
    assert "done at 100%" in shown
    assert before == sorted(page.parent.rglob("*"))
    require_nothing_left(own_directory)


def test_a_task_runs_twice_and_then_once_as_the_tutorial_says(own_directory: Path) -> None:
    """Stock Celery outlasts the visibility timeout; the worker with claims does not care for it."""
    page = ROOT / "docs" / "tutorial-ran-twice.md"
    with running(own_directory, str(page)) as process:
        shown, _ = process.communicate(timeout=HANGS_AFTER_S)
    assert process.returncode == 0, shown
    assert typed_by(shown) == typed_on(page.read_text())
    require_nothing_left(own_directory)
