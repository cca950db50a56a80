#!/usr/bin/env python3
"""Check that a tag may be released, and print its part of the changelog: `scripts/release_check.py v0.1.0 [DIRECTORY]`.

Exit code 1 and the reasons on standard error, if the tag is not `v` and a version, is not annotated, is not signed off,
is not what is checked out, or if CHANGELOG.md has nothing under this version or still something that is unreleased.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]


def sections(changelog: str) -> dict[str, tuple[str, str]]:
    """Return the date and the text of each version of a changelog; that of what is unreleased is empty."""
    found = re.findall(r"(?ms)^## \[?([\w.]+)\]?(?: - (\S+))?\n(.*?)(?=^## |\Z)", changelog)
    return {version: (date, text.strip()) for version, date, text in found}


def objections(tag: str, root: Path) -> Iterator[str]:
    """Yield why a tag may not be released."""
    if not tag.startswith("v") or not _is_version(tag.removeprefix("v")):
        yield f"{tag} is not a version: v1.2.3"
    yield from _of_the_tag(tag, root)
    yield from _of_the_changelog(tag.removeprefix("v"), sections((root / "CHANGELOG.md").read_text()))


def _of_the_tag(tag: str, root: Path) -> Iterator[str]:
    kind, _, message = _git(root, "for-each-ref", f"refs/tags/{tag}", "--format=%(objecttype) %(contents)").partition(
        " "
    )
    if not kind:
        yield f"there is no tag {tag}: git tag --annotate --sign {tag}"
        return
    if kind != "tag":
        yield f"{tag} is a light tag, which has no author: git tag --annotate --sign {tag}"
    elif not re.search(r"(?m)^Signed-off-by: .+@.+$", message):
        yield f"{tag} has no line `Signed-off-by: NAME <ADDRESS>` of the person who has read the changelog"
    if _git(root, "rev-parse", f"{tag}^{{commit}}") != _git(root, "rev-parse", "HEAD"):
        yield f"{tag} is not the commit that is checked out"


def _of_the_changelog(version: str, found: dict[str, tuple[str, str]]) -> Iterator[str]:
    date, text = found.get(version, ("", ""))
    if not text:
        yield f"CHANGELOG.md has no section `## [{version}] - YYYY-MM-DD` with a text"
    elif not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        yield f"the section of {version} in CHANGELOG.md has no date: `## [{version}] - YYYY-MM-DD`"
    if found.get("Unreleased", ("", ""))[1]:
        yield f"CHANGELOG.md has lines under `## Unreleased`: they belong to {version}, or to the next one"


def _is_version(text: str) -> bool:
    try:
        return str(Version(text)) == text
    except InvalidVersion:
        return False


def _git(root: Path, *words: str) -> str:
    found = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)  # noqa: S607 - git
    return found.stdout.strip()


def main() -> None:
    """Check a tag."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tag")
    parser.add_argument("directory", nargs="?", type=Path, default=ROOT)
    given = parser.parse_args()
    found = list(objections(given.tag, given.directory))
    if found:
        sys.exit("\n".join(f"error: {one}" for one in found))
    print(sections((given.directory / "CHANGELOG.md").read_text())[given.tag.removeprefix("v")][1])


if __name__ == "__main__":
    main()
