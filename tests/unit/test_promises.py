"""Each promise of the docs has a test that `make test` runs: the table in `tests/README.md` is true."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.groups import TESTS, needs_a_server

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = TESTS.parent

PAGES = ("README.md", "docs/*.md", "examples/*/README.md")

#: Pages that promise nothing that a test can show, as `tests/README.md` says.
WITHOUT_PROMISES = {"docs/index.md", "docs/glossary.md", "docs/measurements.md", "docs/release.md"}


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: a promise of a page, and its tests as `file` or `file::test`."""

    page: str
    promise: str
    proofs: tuple[str, ...]
    campaign: tuple[str, ...]


def rows(text: str) -> Iterator[Row]:
    """Yield the rows below each page's heading; a row that is not one of three cells is an error."""
    for section in text.partition("\n## Promises\n")[2].split("\n### [")[1:]:
        page = section.partition("]")[0]
        for line in section.splitlines():
            if line.startswith("| ") and not line.startswith(("| promise |", "| --- |")):
                promise, proofs, campaign = re.split(r"\s*\|\s*", line.strip().removeprefix("|").removesuffix("|"))
                yield Row(page, promise.strip(), _tests(proofs), _tests(campaign))


def _tests(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", cell))


ROWS = list(rows((TESTS / "README.md").read_text()))
IDS = [f"{row.page}: {row.promise[:60]}" for row in ROWS]


@dataclass(frozen=True, slots=True)
class Module:
    """The tests of a file, whether it is marked as a whole, and which of its tests are marked."""

    tests: frozenset[str]
    is_marked: bool
    marked: frozenset[str]


@cache
def module(path: str) -> Module:
    """Read a file of tests without importing it."""
    body = ast.parse((ROOT / path).read_text()).body
    tests = [
        one for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name.startswith("test_")
    ]
    marks = [one for one in body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "pytestmark"]
    return Module(
        frozenset(one.name for one in tests),
        any(_is_mark(one.value) for one in marks),
        frozenset(one.name for one in tests if any(_is_mark(decorator) for decorator in one.decorator_list)),
    )


def _is_mark(expression: ast.expr) -> bool:
    return "pytest.mark.promise" in {ast.unparse(one) for one in ast.walk(expression) if isinstance(one, ast.Attribute)}


def exists(test: str) -> bool:
    path, _, name = test.partition("::")
    return (ROOT / path).is_file() and (not name or name in module(path).tests)


def is_unit(test: str) -> bool:
    return not needs_a_server(Path(test.partition("::")[0]).relative_to("tests"), set(), ())


def runs_in_make_test(test: str) -> bool:
    path, _, name = test.partition("::")
    return is_unit(test) or module(path).is_marked or name in module(path).marked


def plain(text: str) -> str:
    """Return a text without line ends, and without the addresses of links."""
    return " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).split())


def anchors(page: str) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).strip().replace(" ", "-") for one in headings}


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_a_promise_stands_on_its_page(row: Row) -> None:
    page = plain((ROOT / row.page).read_text())
    for quoted in re.findall(r'"([^"]+)"', plain(row.promise)):
        assert quoted in page
    for path, anchor in re.findall(r"\]\(\.\./([^)#]+)#([^)]+)\)", row.promise):
        assert path == row.page
        assert anchor in anchors(path)


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_make_test_proves_a_promise(row: Row) -> None:
    assert row.proofs
    assert [one for one in row.proofs if not exists(one)] == []
    assert [one for one in row.proofs if not runs_in_make_test(one)] == []


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_the_campaign_has_other_tests_of_a_promise(row: Row) -> None:
    assert [one for one in row.campaign if not exists(one)] == []
    assert not set(row.campaign) & set(row.proofs)
    assert [one for one in row.campaign if is_unit(one)] == []


def test_each_page_has_a_promise() -> None:
    pages = {path.relative_to(ROOT).as_posix() for pattern in PAGES for path in ROOT.glob(pattern)}
    assert pages - WITHOUT_PROMISES == {row.page for row in ROWS}
    assert pages >= WITHOUT_PROMISES


def test_each_test_with_the_mark_is_in_the_table() -> None:
    """A mark without a promise takes time of `make test` for nothing that is stated."""
    named = {one for row in ROWS for one in row.proofs}
    for path in sorted(one.relative_to(ROOT).as_posix() for one in TESTS.rglob("test_*.py")):
        found = module(path)
        if found.is_marked:
            assert path in named
        assert [one for one in sorted(found.marked) if not {path, f"{path}::{one}"} & named] == []
