"""The hooks of `.pre-commit-config.yaml`, run by pre-commit in a repository with all files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from repot.config import inherited_environment

ROOT = Path(__file__).parents[2]
#: What is installed, built or fetched; a clone has none of it.
NOT_OURS = (".git", ".venv", ".tools", "site", "dist", "*_cache", "__pycache__")


def run(directory: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    environment = inherited_environment(without=("GIT_", "PRE_COMMIT"))
    # `make types` runs mypy on the same files; here it would begin without its cache
    environment |= {"SKIP": "mypy", "PRE_COMMIT_HOME": str(directory.parent / "hooks")}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


def test_every_hook_passes_and_a_defect_is_found(tmp_path: Path) -> None:
    copy = tmp_path / "repot"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*NOT_OURS))
    (copy / ".venv").symlink_to(ROOT / ".venv")
    run(copy, "git", "init", "-q").check_returncode()
    run(copy, "git", "add", "-A").check_returncode()
    hooks = (".venv/bin/pre-commit", "run", "--all-files", "--color", "never")

    found = run(copy, *hooks)

    assert found.returncode == 0, found.stdout + found.stderr
    assert {"ruff check", "ruff format", "words of docs/glossary.md", "import contract"} == {
        line.partition("....")[0] for line in found.stdout.splitlines() if line.endswith("Passed")
    }
    with (copy / "repot" / "errors.py").open("a") as file:
        file.write("import os\n")
    found = run(copy, *hooks)
    assert found.returncode == 1
    assert "ruff check" in "".join(line for line in found.stdout.splitlines() if line.endswith("Failed"))
