"""The files of a public repository agree with the project: workflows, templates, hooks, SECURITY.md."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from campaign.groups import CAMPAIGN

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOW = GITHUB / "workflows" / "checks.yml"
FORMS = sorted(set((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) - {GITHUB / "ISSUE_TEMPLATE" / "config.yml"})

#: Addresses that exist only on one machine, or for one owner of the repository.
_FOREIGN = re.compile(r"https?://\S+|/home/|/root/|/tmp/|\S+@\S+\.(?:com|org|net|io)\b")

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))


def workflow() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text())
    return found


def test_ci_runs_make_test_and_each_group_of_the_campaign() -> None:
    jobs = workflow()["jobs"]
    assert {"make test", "make audit", 'make campaign GROUPS="$GROUP"'} == {
        step["run"] for job in jobs.values() for step in job["steps"] if "run" in step
    }
    matrix = jobs["campaign"]["strategy"]["matrix"]
    named = [*matrix["group"], *(each["group"] for each in matrix["include"])]
    assert sorted(group.name for group in CAMPAIGN) == sorted(named)


def test_ci_runs_on_every_python_that_the_project_names() -> None:
    assert workflow()["jobs"]["test"]["strategy"]["matrix"]["python"] == PYTHONS
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    for job in workflow()["jobs"].values():
        # without it, scripts/setup would take the newest one of the machine
        assert re.fullmatch(r"python(3\.\d+|\$\{\{ matrix\.python \}\})", job["env"]["PYTHON"])


def test_a_workflow_may_only_read() -> None:
    assert workflow()["permissions"] == {"contents": "read"}
    for job in workflow()["jobs"].values():
        assert job["timeout-minutes"] <= 90


@pytest.mark.parametrize("file", sorted((GITHUB / "workflows").glob("*.yml")), ids=lambda file: file.stem)
def test_an_action_is_pinned_by_its_commit_and_says_its_version(file: Path) -> None:
    """A tag may be moved to other code; Dependabot changes both."""
    used = re.findall(r"uses: *(.*)", file.read_text())
    assert used
    for action in used:
        assert re.fullmatch(r"[a-z]+/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


def test_the_audit_reads_each_file_of_what_is_installed_today() -> None:
    """Not those that are to be old, or are of other applications."""
    (named,) = re.findall(r"^AUDITED := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    parts = ("oldest", "celery-", "application-", "conformance", "kubernetes", "web-servers")
    ours = {file.name for file in ROOT.glob("requirements*.txt") if not any(part in file.name for part in parts)}
    assert ours == set(named.split())


def test_an_audit_that_learns_nothing_of_a_package_fails() -> None:
    """Without --strict pip-audit ends with 0 where its source knows none of the packages."""
    (recipe,) = re.findall(r"^audit:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert " --strict " in recipe


def test_the_oldest_requirements_are_the_bounds_of_the_project() -> None:
    """`scripts/lock` resolves them; a bound that moves without it is seen here."""
    pinned = dict(re.findall(r"(?m)^([\w.-]+)==([\w.]+)", (ROOT / "requirements-oldest.txt").read_text()))
    extras = [each for name, found in PROJECT["optional-dependencies"].items() if name != "all" for each in found]
    for requirement in map(Requirement, [*PROJECT["dependencies"], *extras]):
        (lowest,) = [each for each in requirement.specifier if each.operator == ">="]
        (oldest,) = [Requirement(f"x=={lowest.version}").specifier]
        assert oldest.contains(pinned[requirement.name]), requirement


def test_the_security_policy_has_the_bounds_of_the_project() -> None:
    rows = dict(re.findall(r"(?m)^\| (\w+)[^|]* \| ([^|]+) \|", (ROOT / "SECURITY.md").read_text()))
    assert rows["Python"] == PROJECT["requires-python"]
    bounds = {each.name: each for each in map(Requirement, PROJECT["dependencies"])}
    for name in ("celery", "kombu", "amqp", "redis"):
        row = rows[{"celery": "Celery"}.get(name, name)]
        assert set(row.split(",")) == set(str(bounds[name].specifier).split(",")), name


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_an_issue_form_is_one_that_github_shows(form: Path) -> None:
    """Its rules for forms: a name, a description, an id for each field, a label, options that differ."""
    found = yaml.safe_load(form.read_text())
    assert {"name", "description", "labels", "body"} == set(found)
    fields = [each for each in found["body"] if each["type"] != "markdown"]
    assert len(fields) == len({each["id"] for each in fields})
    assert len(fields) == len({each["attributes"]["label"] for each in fields})
    for each in found["body"]:
        assert each["type"] in {"markdown", "textarea", "input", "dropdown"}
        options = each["attributes"].get("options", [])
        assert bool(options) == (each["type"] == "dropdown")
        assert len(options) == len(set(options))


def test_every_hook_is_a_tool_of_the_environment() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    for hook in repository["hooks"]:
        program = hook["entry"].split()[0]
        assert program.startswith(".venv/bin/")
        assert (Path(sys.executable).parent / Path(program).name).exists(), hook["id"]


@pytest.mark.parametrize(
    "path",
    [*sorted(path for path in GITHUB.rglob("*") if path.is_file()), *map(ROOT.joinpath, (
        "SECURITY.md", ".pre-commit-config.yaml", ".editorconfig", "requirements-oldest.txt", "scripts/environment",
        "scripts/actionlint",
    ))],
    ids=lambda path: path.name,
)  # fmt: skip
def test_no_file_names_an_address(path: Path) -> None:
    assert _FOREIGN.findall(path.read_text()) == []
