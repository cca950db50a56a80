"""Applications as the tutorials write them, mistakes to plant in copies of them, and the command that judges a copy."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from repot.config.environment import inherited_environment
from support import forked

if TYPE_CHECKING:
    import subprocess

APPS = Path(__file__).parents[1] / "tutorial_apps"


@dataclass(frozen=True)
class Shape:
    """One way to write an application: its directory, and what `celery -A` calls it."""

    directory: str
    app: str


@dataclass(frozen=True)
class Edit:
    """Text put into a file: below the line with the words `after`, instead of others, or at its end.

    A file that does not exist is made.
    """

    file: str
    text: str
    after: str = ""
    instead_of: str = ""

    def make(self, directory: Path) -> None:
        """Change the file in a copy."""
        path = directory / self.file
        written = path.read_text(encoding="utf-8") if path.exists() else ""
        path.parent.mkdir(exist_ok=True)
        path.write_text(self._changed(written), encoding="utf-8")

    def _changed(self, written: str) -> str:
        if self.instead_of:
            assert self.instead_of in written, self
            return written.replace(self.instead_of, self.text, 1)
        if not self.after:
            return f"{written}\n{self.text}\n" if written else f"{self.text}\n"
        lines = written.splitlines()
        above = next(number for number, line in enumerate(lines) if self.after in line)
        margin = lines[above][: len(lines[above]) - len(lines[above].lstrip())]
        lines.insert(above + 1, textwrap.indent(self.text, margin))
        return "\n".join([*lines, ""])


@dataclass(frozen=True)
class Plant:
    """A mistake, and what must be found of it: the rule, the task or setting, and the line.

    `at` is "file: words of the line" where that is not the planted text's first line,
    and empty for a mistake that stands nowhere in the project.
    """

    rule: str
    about: str
    edit: Edit | None = None
    at: str | None = None

    @property
    def expected(self) -> tuple[str, str, str, str]:
        """Rule, task or setting, file, and words of the line."""
        if self.at is not None or self.edit is None:
            file, _, words = (self.at or "").partition(": ")
            return self.rule, self.about, file, words
        return self.rule, self.about, self.edit.file, self.edit.text.strip().splitlines()[0]


@dataclass(frozen=True)
class Variant:
    """A copy of an application with everything that is changed in it, and how it is judged."""

    shape: Shape
    plants: tuple[Plant, ...] = ()
    edits: tuple[Edit, ...] = ()
    options: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    mounted: bool = False
    note: str = ""

    def __str__(self) -> str:
        """Its name in a list of tests."""
        return f"{self.shape.directory} {self.note}".strip()

    @property
    def command(self) -> list[str]:
        """As `repot doctor -A NAME`, or as `celery -A NAME repot doctor`."""
        if self.mounted:
            return [sys.executable, "-m", "celery", "-A", self.shape.app, "repot", "doctor", *self.options]
        return [sys.executable, "-m", "repot", "doctor", "-A", self.shape.app, *self.options]


@dataclass(frozen=True)
class Outcome:
    """The result of the command on a copy."""

    directory: Path
    exit_code: int
    stdout: str
    stderr: str
    report: dict[str, Any] = field(repr=False)

    @property
    def findings(self) -> list[dict[str, Any]]:
        """What was found, nothing of it waived."""
        found: list[dict[str, Any]] = self.report["findings"]
        return found

    @property
    def rules(self) -> set[str]:
        """The rules that found something."""
        return {str(one["rule"]) for one in self.findings}

    def line(self, finding: dict[str, Any]) -> str:
        """The line a finding points at; empty for one that points nowhere."""
        if not finding["file"]:
            return ""
        lines = (self.directory / str(finding["file"])).read_text(encoding="utf-8").splitlines()
        return lines[int(finding["line"]) - 1]

    def says(self, expected: tuple[str, str, str, str]) -> bool:
        """Whether one of the findings is this one."""
        rule, about, file, words = expected
        return any(
            one["rule"] == rule
            and about in (one["task"], one["setting"], "")
            and file == (one["file"] or "")
            and words in self.line(one)
            for one in self.findings
        )


class Judge:
    """Judges copies, several at a time; each variant once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pool = ThreadPoolExecutor(2)
        self._begun: dict[Variant, Future[Outcome]] = {}

    def __enter__(self) -> Self:
        """Begin without anything to judge."""
        return self

    def __exit__(self, *_: object) -> None:
        """Forget what has not begun."""
        self._pool.shutdown(cancel_futures=True)

    def begin(self, variant: Variant) -> Future[Outcome]:
        """Judge it when there is time."""
        if variant not in self._begun:
            directory = self._directory / str(len(self._begun))
            self._begun[variant] = self._pool.submit(_judge, variant, directory)
        return self._begun[variant]

    def __call__(self, variant: Variant) -> Outcome:
        """What the command says of it."""
        return self.begin(variant).result()


def _judge(variant: Variant, directory: Path) -> Outcome:
    shutil.copytree(APPS / variant.shape.directory, directory, ignore=shutil.ignore_patterns("__pycache__"))
    for edit in (*variant.edits, *(plant.edit for plant in variant.plants if plant.edit)):
        edit.make(directory)
    found = run([*variant.command, "--format", "json"], directory, dict(variant.environment))
    report = json.loads(found.stdout)["applications"][0] if found.stdout else {}
    return Outcome(directory, found.returncode, found.stdout, found.stderr, report)


def run(
    command: list[str], directory: Path, variables: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A command in a directory, in an environment without settings."""
    environment = inherited_environment(without=("WORKER_", "CELERY_")) | (variables or {})
    return forked.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
