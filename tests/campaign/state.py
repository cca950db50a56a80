"""The results of groups, kept so that a campaign that was interrupted goes on."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from campaign.groups import ROOT
from campaign.running import Result

if TYPE_CHECKING:
    from pathlib import Path


class Results:
    """The last result of each group, in a file of its own, with a hash of the checkout that it is about."""

    def __init__(self, directory: Path, root: Path = ROOT) -> None:
        """Take the directory of the results, which exists, and that of the checkout."""
        self._directory, self._checkout = directory, _fingerprint(root)

    def add(self, name: str, result: Result) -> None:
        """Keep a result."""
        new = self._path(name).with_suffix(".new")
        new.write_text(json.dumps({"checkout": self._checkout, "result": asdict(result)}))
        new.replace(self._path(name))

    def last(self, name: str) -> Result | None:
        """Return a group's last result, on whatever files."""
        found = self._read(name)
        return Result(**found["result"]) if found else None

    def passed(self, name: str) -> Result | None:
        """Return the result of a group that passed on the files as they are; None if it did not, or was skipped."""
        found = self._read(name)
        if found is None or found["checkout"] != self._checkout:
            return None
        result = Result(**found["result"])
        return None if result.problem or result.skipped else result

    def forget(self, name: str) -> None:
        """Remove a group's result."""
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.json"

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self._path(name)
        return json.loads(path.read_text()) if path.exists() else None  # type: ignore[no-any-return] # as `add` wrote it


def _fingerprint(root: Path) -> str:
    """Return a hash of all files of the checkout but those that git ignores."""
    listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(listed, cwd=root, capture_output=True, check=True).stdout.decode().split("\0")
    found = hashlib.sha256()
    for name in sorted(filter(None, names)):
        path = root / name
        found.update(f"{name}\0".encode())
        found.update(path.read_bytes() if path.is_file() else b"")
    return found.hexdigest()
