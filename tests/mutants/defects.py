"""The kept defects: one file for each area under `defects/`, and the checks that it is still about this code."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

#: Of the repository, or of a copy of it.
ROOT = Path(__file__).parents[2]
LISTS = Path(__file__).parent / "defects"

#: What the lists are about: each area has one, of its name.
AREAS = ("guard", "jobs", "mover", "routing", "rollout", "claims", "outbox", "dead_letters")


class RottenError(Exception):
    """An entry is not about the code as it is: its text is gone, its test is gone, or no test runs."""


@dataclass(frozen=True, slots=True)
class Defect:
    """One change of one file that some test must notice.

    Attributes:
        area: the list that it stands in.
        name: what is wrong with the code then, in the terms of the field.
        file: from the root of the repository.
        old, new: the text, which occurs once in the file, and what stands there instead.
        tests: node ids, or files; at least one of their tests must turn red.
        group: of `make test`, to which these tests belong: `unit`, or `promises` where they need a server.
        equivalent: why no test can notice it; empty for a defect.
    """

    area: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    group: str = "unit"
    equivalent: str = ""

    def planted(self, root: Path = ROOT) -> str:
        """Return the text of the file with the defect.

        Raises:
            RottenError: the file, its text or one of its tests is not there, or the text is there several times.
        """
        path = root / self.file
        if not path.is_file():
            message = f"{self.name}: there is no file {self.file}"
            raise RottenError(message)
        text = path.read_text()
        if (times := text.count(self.old)) != 1 or self.old == self.new:
            message = f"{self.name}: the old text stands {times} times in {self.file}, and must stand there once"
            raise RottenError(message)
        if missing := [one for one in self.tests if not _is_there(one, root)]:
            message = f"{self.name}: there is no test {', '.join(missing)}"
            raise RottenError(message)
        return text.replace(self.old, self.new)


def _is_there(test: str, root: Path) -> bool:
    """Return whether a file of tests is there, with the function that a node id names."""
    file, _, function = test.partition("[")[0].partition("::")
    path = root / file
    return path.is_file() and (not function or f"def {function}(" in path.read_text())


def kept_defects() -> list[Defect]:
    """Return all defects, in the order of the areas and of their lists."""
    return [
        Defect(area, **one | {"tests": tuple(one["tests"])})
        for area in AREAS
        for one in tomllib.loads((LISTS / f"{area}.toml").read_text()).get("defect", ())
    ]
