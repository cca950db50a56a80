"""The documents say what the program does."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from repot.chaos.scenarios import SCENARIOS
from repot.cli.main import main
from repot.config import HealthcheckSettings, WorkerSettings, variable
from repot.doctor.catalogue import own_rules

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def test_the_settings_page_is_made_from_the_settings() -> None:
    """`make docs` writes it."""
    page = runpy.run_path(str(ROOT / "scripts" / "settings_page.py"))["page"]()
    assert page == (ROOT / "docs" / "settings.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_in_the_documents_exists(page: Path) -> None:
    for words in re.findall(r"(?:`|\$ |\.venv/bin/)repot ((?:[a-z]+ ?){1,2})", page.read_text()):
        first, *rest = words.split()
        command = main.commands.get(first)
        assert command is not None, words
        for name in rest[: 1 if hasattr(command, "commands") else 0]:
            assert name in getattr(command, "commands", {}), words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_variable_in_the_documents_exists(page: Path) -> None:
    known = {variable(name, one) for one in (WorkerSettings, HealthcheckSettings) for name in one.model_fields}
    found = set(re.findall(r"(?<![A-Z_])(?:WORKER|HEALTHCHECK)_[A-Z_]+[A-Z]\b", page.read_text()))
    assert found <= known


def test_the_tables_of_scenarios_are_made_from_them() -> None:
    """`make docs` writes them."""
    text = (ROOT / "docs" / "scenarios.md").read_text()
    assert text == runpy.run_path(str(ROOT / "scripts" / "scenarios_page.py"))["page"](text)
    assert all(f"| `{name}` |" in text for name in SCENARIOS)


def test_the_matrix_has_every_scenario_of_the_table() -> None:
    """`repot chaos run --markdown docs/matrix.md` writes it."""
    text = (ROOT / "docs" / "matrix.md").read_text()
    assert [] == [name for name in SCENARIOS if name not in text]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_make_target_in_the_documents_exists() -> None:
    targets = set(re.findall(r"(?m)^([a-z]+):", (ROOT / "Makefile").read_text()))
    for page in PAGES:
        assert set(re.findall(r"`make ([a-z]+)`", page.read_text())) <= targets, page.name


def test_the_rule_pages_are_made_from_the_rules() -> None:
    """`make docs` writes them."""
    pages = runpy.run_path(str(ROOT / "scripts" / "rule_pages.py"))["pages"]()
    assert pages == {path.name: path.read_text() for path in (ROOT / "docs" / "rules").glob("*.md")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_rule_in_the_documents_exists(page: Path) -> None:
    assert set(re.findall(r"\bRPT\d{3}\b", page.read_text())) <= set(own_rules())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_in_the_documents_exists(page: Path) -> None:
    known = {
        name for path in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)\(", path.read_text())
    }
    assert set(re.findall(r"`(test_\w+)`", page.read_text())) <= known
