"""Which groups have passed on the files as they are, so that a campaign that was interrupted goes on."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import asdict
from typing import TYPE_CHECKING

from campaign.groups import ROOT
from campaign.running import Result

if TYPE_CHECKING:
    from pathlib import Path


class Passed:
    """The results of the groups that passed, kept in a file; those on other files are forgotten."""

    def __init__(self, path: Path) -> None:
        """Read the file, if there is one."""
        self._path, self._files = path, _fingerprint()
        found = json.loads(path.read_text()) if path.exists() else {}
        kept = found.get("groups", {}) if found.get("files") == self._files else {}
        self.groups = {name: Result(**each) for name, each in kept.items()}

    def add(self, name: str, result: Result) -> None:
        """Keep the result of a group that passed."""
        self.groups[name] = result
        text = json.dumps({"files": self._files, "groups": {one: asdict(each) for one, each in self.groups.items()}})
        new = self._path.with_suffix(".new")
        new.write_text(text)
        new.replace(self._path)


def _fingerprint() -> str:
    """Return a hash of all files of the checkout but those that git ignores."""
    listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    found = hashlib.sha256()
    for name in sorted(filter(None, names)):
        path = ROOT / name
        found.update(f"{name}\0".encode())
        found.update(path.read_bytes() if path.is_file() else b"")
    return found.hexdigest()
