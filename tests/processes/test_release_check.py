"""What may be released: `scripts/release_check.py`, on real repositories."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "release_check.py"
CHANGELOG = (
    "# Changelog\n\n## Unreleased\n\n{unreleased}## [0.2.0] - {date}\n\n### Fixed\n\n- Two.\n\n## 0.1.0\n\n- One.\n"
)
SIGNED = "0.2.0\n\nSigned-off-by: A Person <person@example.org>"


class Repository:
    """A repository with a changelog, and tags."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.git("init", "-q", "-b", "main")
        self.write()

    def git(self, *words: str) -> None:
        who = ("-c", "user.name=A Person", "-c", "user.email=person@example.org", "-c", "tag.gpgSign=false")
        subprocess.run(["git", *who, *words], cwd=self.path, check=True, capture_output=True)

    def write(self, unreleased: str = "", date: str = "2026-12-01") -> None:
        (self.path / "CHANGELOG.md").write_text(CHANGELOG.format(unreleased=unreleased, date=date))
        self.git("add", "-A")
        self.git("commit", "-qm", "changelog", "--allow-empty")

    def check(self, tag: str = "v0.2.0") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, SCRIPT, tag, str(self.path)], capture_output=True, text=True, check=False
        )


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_a_signed_off_tag_prints_its_part_of_the_changelog(repository: Repository) -> None:
    repository.git("tag", "--annotate", "v0.2.0", "-m", SIGNED)
    found = repository.check()
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout == "### Fixed\n\n- Two.\n"


def test_a_tag_that_is_missing_or_light_or_not_signed_off_is_refused(repository: Repository) -> None:
    assert "there is no tag v0.2.0" in repository.check().stderr
    repository.git("tag", "v0.2.0")
    found = repository.check()
    assert (found.returncode, found.stdout) == (1, "")
    assert "light tag" in found.stderr
    repository.git("tag", "--force", "--annotate", "v0.2.0", "-m", "0.2.0")
    assert "Signed-off-by" in repository.check().stderr


def test_a_tag_of_another_commit_is_refused(repository: Repository) -> None:
    repository.git("tag", "--annotate", "v0.2.0", "-m", SIGNED)
    repository.git("commit", "-qm", "later", "--allow-empty")
    assert "not the commit that is checked out" in repository.check().stderr


def test_a_changelog_that_is_not_ready_is_refused(repository: Repository) -> None:
    repository.write("- Three.\n\n", "soon")
    for tag in ("v0.2.0", "v0.3.0", "0.1.0"):
        repository.git("tag", "--annotate", tag, "-m", SIGNED)
    found = repository.check().stderr
    assert "has no date" in found
    assert "has lines under `## Unreleased`" in found
    assert "no section `## [0.3.0] - YYYY-MM-DD`" in repository.check("v0.3.0").stderr
    assert "0.1.0 is not a version: v1.2.3" in repository.check("0.1.0").stderr
