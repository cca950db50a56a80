"""The documents say what the program does."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import click
import pytest

from repot import errors
from repot.chaos.scenarios.catalogue import SCENARIOS
from repot.cli.main import main
from repot.config import HealthcheckSettings, WorkerSettings, variable
from repot.doctor.registry import own_rules
from repot.errors import RepotError
from support.planted_mistakes import MISTAKES
from support.releases import needs

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/*.md")])


def in_force(page: Path) -> str:
    """Return a page's text without the glossary's list of names that are gone."""
    return page.read_text().partition("\n## Replaced terms\n")[0]


def test_the_settings_page_is_made_from_the_settings() -> None:
    """`make docs` writes it."""
    page = runpy.run_path(str(ROOT / "scripts" / "settings_page.py"))["page"]()
    assert page == (ROOT / "docs" / "settings.md").read_text()


def test_the_page_of_exit_codes_is_made_from_the_errors() -> None:
    """`make docs` writes it."""
    page = runpy.run_path(str(ROOT / "scripts" / "exit_codes_page.py"))["page"]()
    assert page == (ROOT / "docs" / "exit-codes.md").read_text()


def test_every_exit_code_has_a_meaning_and_the_help_says_the_same() -> None:
    codes = runpy.run_path(str(ROOT / "scripts" / "exit_codes_page.py"))["codes"]()
    used = {one.exit_code for one in vars(errors).values() if isinstance(one, type) and issubclass(one, RepotError)}
    assert used <= {code for code, _ in codes}
    assert f"Exit codes: {', '.join(f'{code} {meaning}' for code, meaning in codes)}." in (main.epilog or "")


def test_the_ladder_on_the_page_is_the_contract() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    block = page.partition("\n## The ladder\n")[2].split("```text\n")[1].split("```")[0]
    shown = [re.split(r"\s{2,}", line)[0].strip() for line in block.splitlines() if line.strip("| ")]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert next(one["layers"] for one in contracts if one["type"] == "layers") == shown


def test_the_readme_is_short() -> None:
    """What has no room there has a page in docs/."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 140


def typed(page: Path) -> list[str]:
    """Return what follows `repot` in the commands of a page: in backticks, behind a prompt, in lines of code blocks."""
    text = in_force(page)
    found = re.findall(r"(?:`|\$ |\.venv/bin/)repot ([a-z][^`\n|#]*)", text)
    for block in re.findall(r"(?ms)^```[^\n]*\n(.*?)^```", text):
        found += re.findall(r"(?m)^(?:[A-Z_]+=\S+ )*(?:(?:kubectl|rollout) .*? )?repot ([a-z][^`\n|#&]*)", block)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_in_the_documents_exists(page: Path) -> None:
    for line in typed(page):
        words = re.match(r"(?:[a-z]+ ?){1,2}", line)
        assert words, line
        first, *rest = words[0].split()
        context = click.Context(main)
        command = main.get_command(context, first)
        assert command is not None, line
        for name in rest[: 1 if isinstance(command, click.Group) else 0]:
            assert isinstance(command, click.Group), line
            assert name in command.list_commands(context), line


def _command(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command that words lead to, and the words left."""
    command: click.Command = main
    while words and isinstance(command, click.Group):
        found = command.get_command(click.Context(main), words[0])
        if found is None:
            break
        command, words = found, words[1:]
    return command, words


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "compose" / "prometheus" / "alerts.yml"], ids=lambda page: str(page.relative_to(ROOT))
)
def test_every_option_of_a_command_in_the_documents_exists(page: Path) -> None:
    for line in typed(page):
        # a quoted argument is another program's
        text = re.sub(r"'[^']*'|\"[^\"]*\"", "''", line)
        command, rest = _command(text.split())
        known = {option for one in (*command.params, *main.params) for option in (*one.opts, *one.secondary_opts)} | {
            "--help",
            "-h",
        }
        assert {word.partition("=")[0].rstrip(",.);") for word in rest if re.match(r"--?[a-z]", word)} <= known, text


#: Files that a reader of the page writes.
EXAMPLES = {"docs/adr/7.md", "repot/chaos/faults/pool_frozen.py"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_in_the_documents_exists(page: Path) -> None:
    named = re.findall(r"(?<![\w/.-])(?:repot|tests|benchmarks|scripts|docs)/[\w/.-]+\.[a-z]+", in_force(page))
    assert [name for name in named if name not in EXAMPLES and not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_variable_in_the_documents_exists(page: Path) -> None:
    known = {variable(name, one) for one in (WorkerSettings, HealthcheckSettings) for name in one.model_fields}
    found = set(re.findall(r"(?<![A-Z_])(?:WORKER|HEALTHCHECK)_[A-Z_]+[A-Z]\b", in_force(page)))
    assert found <= known


@needs("celery", "5.5", "the page is of releases with a soft shutdown")
def test_the_tables_of_scenarios_are_made_from_them() -> None:
    """`make docs` writes them."""
    text = (ROOT / "docs" / "scenarios.md").read_text()
    assert text == runpy.run_path(str(ROOT / "scripts" / "scenarios_page.py"))["page"](text)
    assert all(f"| `{name}` |" in text for name in SCENARIOS)


def test_the_table_of_mistakes_is_what_is_run() -> None:
    page = (ROOT / "docs" / "chaos-testing.md").read_text().partition("\n## Mistakes that it finds\n")[2]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]
    runs = {
        name: (
            f"`{one.scenario}`"
            + (f", on RabbitMQ `{one.on_rabbitmq}`," if one.on_rabbitmq else "")
            + (" with a probe" if one.counts else "")
            + (" with `--arguments`" if "--arguments" in one.options else ""),
            one.found,
            one.accepted,
        )
        for name, one in MISTAKES.items()
    }
    assert runs == {name: (run, found, accepted) for name, run, found, _, accepted in rows[2 : 2 + len(MISTAKES)]}


@pytest.mark.parametrize(("name", "make"), [("docs/celery-releases.md", "page"), ("README.md", "readme")])
def test_the_tables_of_capabilities_are_made_from_them(name: str, make: str) -> None:
    """`make docs` writes them."""
    text = (ROOT / name).read_text()
    assert text == runpy.run_path(str(ROOT / "scripts" / "capabilities_page.py"))[make](text)


def test_the_matrix_is_made_from_the_table_of_expectations() -> None:
    """`make docs` writes it: a row for each scenario, and conclusions."""
    text = (ROOT / "docs" / "matrix.md").read_text()
    assert text == runpy.run_path(str(ROOT / "scripts" / "matrix_page.py"))["page"](text)
    rows = re.findall(r"(?m)^\| ([\w-]+) \|", text)
    assert ["scenario", "---", *SCENARIOS] == rows
    # a row that differs, or that is missing, is written again
    lines = text.splitlines(keepends=True)
    other = "".join(line for line in lines if not line.startswith("| slicer |")).replace("| ok |", "| lost |", 1)
    assert text == runpy.run_path(str(ROOT / "scripts" / "matrix_page.py"))["page"](other)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_make_target_in_the_documents_exists() -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    for page in PAGES:
        assert set(re.findall(r"`make ([a-z-]+)`", page.read_text())) <= targets, page.name


def test_the_rule_pages_are_made_from_the_rules() -> None:
    """`make docs` writes them."""
    pages = runpy.run_path(str(ROOT / "scripts" / "rule_pages.py"))["pages"]()
    assert pages == {path.name: path.read_text() for path in (ROOT / "docs" / "rules").glob("*.md")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_rule_in_the_documents_exists(page: Path) -> None:
    assert set(re.findall(r"\bRPT\d{3}\b", page.read_text())) <= set(own_rules())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_in_the_documents_exists(page: Path) -> None:
    known = {
        name for path in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)\(", path.read_text())
    }
    # repot/testbed/test_broker.py is a module of repot
    known |= {path.stem for path in (ROOT / "repot").rglob("test_*.py")}
    assert set(re.findall(r"`(test_\w+)`", page.read_text())) <= known


EXAMPLE_DIRECTORIES = sorted(path.parent for path in ROOT.glob("examples/*/README.md"))


def test_every_example_has_a_readme_that_the_documents_lead_to() -> None:
    assert sorted(path for path in (ROOT / "examples").iterdir() if path.is_dir()) == EXAMPLE_DIRECTORIES
    readme = (ROOT / "README.md").read_text()
    pages = runpy.run_path(str(ROOT / "scripts" / "site_hooks.py"))["OUTSIDE"]
    navigation = (ROOT / "mkdocs.yml").read_text()
    for directory in EXAMPLE_DIRECTORIES:
        name = f"examples/{directory.name}/README.md"
        assert f"]({name})" in readme
        assert f": {pages[name]}\n" in navigation
