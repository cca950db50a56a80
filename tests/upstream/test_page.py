"""`docs/upstream.md` names every point and every bug."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "upstream.md").read_text()
BUGS = ast.parse((ROOT / "tests" / "upstream" / "test_bugs.py").read_text())


def _bugs() -> dict[str, str]:
    """The workaround of each reproduction, by the name of its test."""
    found = {}
    for node in ast.walk(BUGS):
        if isinstance(node, ast.FunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "bug":
                    found[node.name] = ast.literal_eval(mark.args[0])
    return found


def test_the_table_of_points_is_made_from_the_modules() -> None:
    """`make docs` writes it."""
    assert runpy.run_path(str(ROOT / "scripts" / "upstream_page.py"))["page"](PAGE) == PAGE


def test_every_reproduction_is_on_the_page_with_its_workaround() -> None:
    sections = PAGE.partition("## Bugs with a reproduction")[2].partition("\n## ")[0].split("\n### ")[1:]
    for test, workaround in _bugs().items():
        (section,) = [one for one in sections if f"`{test}`" in one]
        assert f"`{workaround}`" in section, test
    assert set(_bugs()) == {name for one in sections for name in re.findall(r"`(test_\w+)`", one)}


def test_every_file_on_the_page_exists() -> None:
    for path in re.findall(r"`((?:repot|tests)/[\w/]+\.py)`", PAGE):
        assert (ROOT / path).exists(), path
