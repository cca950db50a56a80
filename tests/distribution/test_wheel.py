"""What is published: the contents of sdist and wheel, and the wheel in an environment without anything else."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from packaging.requirements import Requirement

from support.tutorials import APPS
from support.wheels import ROOT, Built, checked, install, run

if TYPE_CHECKING:
    import subprocess

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

#: Packages of extras and of tests. A worker that installs `repot` alone has none of them.
NOT_IN_CORE = {
    "fastapi", "jinja2", "junitparser", "prometheus-client", "psutil", "pytest", "rich", "toxiproxy-python", "uvicorn",
}  # fmt: skip


def test_the_wheel_has_the_package_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = set(archive.namelist())
    information = f"repot-{built.version}.dist-info/"
    of_package = {name for name in names if not name.startswith(information)}
    here = {path.relative_to(ROOT).as_posix() for path in (ROOT / "repot").rglob("*") if path.is_file()}
    assert of_package == {name for name in here if "__pycache__" not in name}
    assert {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"} == {
        name.removeprefix(information) for name in names - of_package
    }


def test_the_sdist_has_no_tools_no_environment_and_no_passwords(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    wanted = {
        "repot",
        "tests",
        "docs",
        "examples",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "pyproject.toml",
        "PKG-INFO",
        ".gitignore",
    }
    assert wanted == {name.partition("/")[0] for name in names}
    assert [name for name in names if re.search(r"(^|/)(\.env|\.venv|\.tools|__pycache__)(/|$)|\.pyc$", name)] == []


def test_the_core_requires_no_package_of_an_extra(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())
    required = [Requirement(each) for each in metadata.get_all("Requires-Dist", [])]
    core = {each.name for each in required if each.marker is None}
    assert core == {Requirement(each).name for each in PROJECT["dependencies"]}
    assert set() == core & NOT_IN_CORE
    assert set(PROJECT["optional-dependencies"]) == set(metadata.get_all("Provides-Extra", []))


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the commands of an environment that has the wheel, with the tested versions of what it needs."""
    return install(tmp_path_factory.mktemp("installed"), built.wheel)


def test_an_empty_environment_gets_no_package_of_an_extra(installed: Path) -> None:
    code = "import importlib.metadata as m; print(*{d.name.lower() for d in m.distributions()}, sep='\\n')"
    names = set(checked([installed / "python", "-c", code], installed).split())
    assert {"repot", "celery"} <= names
    assert set() == names & NOT_IN_CORE


def test_the_commands_answer(built: Built, installed: Path) -> None:
    assert "doctor" in checked([installed / "repot", "--help"], installed)
    assert f"repot, version {built.version}\n" == checked([installed / "repot", "--version"], installed)


def test_the_version_comes_from_the_tag(tmp_path: Path) -> None:
    """Files without their repository have no version that could be known."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    command: list[str | Path] = [sys.executable, "-m", "hatchling", "version"]
    assert checked(command, tmp_path).strip() == "0.0.0"
    git: list[str | Path] = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "tag.gpgSign=false"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"], ["tag", "-a", "v7.8.9", "-m", "7.8.9"]):
        checked([*git, *words], tmp_path)
    assert checked(command, tmp_path).strip() == "7.8.9"


def test_a_worker_imports_what_it_needs(installed: Path) -> None:
    code = "import repot.idempotency, repot.config, repot.worker.app; print(repot.configure.__name__)"
    assert checked([installed / "python", "-c", code], installed).split() == ["configure"]


@pytest.mark.parametrize("command", ["repot doctor -A tasks", "celery -A tasks repot doctor"])
def test_the_doctor_judges_an_application_that_does_not_use_repot(
    installed: Path, tmp_path: Path, command: str
) -> None:
    """The same findings as from this environment (`tests/apps`)."""
    shutil.copytree(APPS / "first_steps", tmp_path, dirs_exist_ok=True)
    program, *words = command.split()
    require_findings(run([installed / program, *words, "--format", "json"], tmp_path))


def test_the_doctor_needs_no_install(built: Built, tmp_path: Path) -> None:
    """As docs/doctor.md has it; `uvx` makes an environment of its own."""
    shutil.copytree(APPS / "first_steps", tmp_path, dirs_exist_ok=True)
    uvx = Path(sys.executable).with_name("uvx")
    require_findings(run([uvx, "--from", built.wheel, "repot", "doctor", "-A", "tasks", "--format", "json"], tmp_path))


def require_findings(found: subprocess.CompletedProcess[str]) -> None:
    assert found.returncode == 4, found.stderr
    (report,) = json.loads(found.stdout)["applications"]
    assert {"RPT103", "RPT203", "RPT219", "RPT301", "RPT302", "RPT308"} == {one["rule"] for one in report["findings"]}


def test_a_command_of_an_extra_names_the_extra(installed: Path, tmp_path: Path) -> None:
    found = run([installed / "repot", "chaos", "run", "reset"], tmp_path)
    assert found.returncode == 1, found.stdout
    assert "pip install 'repot[chaos]'" in found.stderr
