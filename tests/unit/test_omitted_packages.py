"""A production image omits `repot.chaos` and `repot.testbed`: what it has names no module of theirs, as text either.

The import contract of pyproject.toml sees `import`; what is imported by a name in a text is seen here.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from repot.cli.main import _OMITTED

ROOT = Path(__file__).parents[2]
#: It says which package a command lacks, and imports none.
NAMING = {"repot.cli.main": {*_OMITTED}}


def _contract() -> dict[str, list[str]]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (found,) = [one for one in contracts if one["type"] == "protected"]
    return dict(found)


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def names(source: str, omitted: list[str]) -> set[str]:
    """The texts of a source that are the name of an omitted module, or of something in one."""
    named = re.compile(rf"(?:{'|'.join(map(re.escape, omitted))})(?:[.:][\w.:]+)?")
    found = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return {value for value in found if isinstance(value, str) and named.fullmatch(value)}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("app = Celery('repot', include=['repot.chaos.instruments.tasks'])", {"repot.chaos.instruments.tasks"}),
        ("import_module('repot.testbed').start()", {"repot.testbed"}),
        ("STEPS = ('repot.chaos.steps:Step',)", {"repot.chaos.steps:Step"}),
        ("hint = 'run `repot chaos list`; repot.chaos has more'", set()),
        ("import_module('repot.chaosium')", set()),
    ],
)
def test_a_name_is_seen(source: str, found: set[str]) -> None:
    assert names(source, ["repot.chaos", "repot.testbed"]) == found


def test_nothing_else_names_an_omitted_module() -> None:
    contract = _contract()
    omitted, allowed = contract["protected_modules"], contract["allowed_importers"]
    assert {*omitted} == {*_OMITTED}
    found = {}
    for path in (ROOT / "repot").rglob("*.py"):
        module = _module(path)
        if not any(f"{module}.".startswith(f"{one}.") for one in (*allowed, *omitted)):
            found[module] = names(path.read_text(), omitted)
    assert {module: named for module, named in found.items() if named} == NAMING


def test_only_commands_of_experiments_may() -> None:
    allowed = {one for one in _contract()["allowed_importers"] if one != "repot.chaos"}
    commands = {"chaos", "chaos_load", "chaos_outputs", "demo", "matrix_table", "tables", "up"}
    assert allowed == {f"repot.cli.{name}" for name in commands}


def test_the_dockerfile_omits_them() -> None:
    (omitted,) = re.findall(r'(?m)^ARG OMIT="(.+)"$', (ROOT / "Dockerfile").read_text())
    assert omitted.split() == [*_OMITTED]
