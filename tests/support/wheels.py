"""Build wheels, and install them in environments of their own."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from repot.config.environment import inherited_environment

ROOT = Path(__file__).parents[2]


def run(command: list[str | Path], directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as a shell without this environment would."""
    environment = inherited_environment(without=("WORKER_", "CELERY_", "PYTHON", "VIRTUAL_ENV"))
    # uv knows no certificates but its own otherwise, and a registry may be behind a proxy
    environment["UV_SYSTEM_CERTS"] = "1"
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


def checked(command: list[str | Path], directory: Path) -> str:
    """Return what a command prints; a failure shows all of it."""
    found = run(command, directory)
    assert found.returncode == 0, f"{command}\n{found.stdout}{found.stderr}"
    return found.stdout


@dataclass(frozen=True)
class Built:
    """The two files, the wheel made from the sdist as a packager makes it."""

    sdist: Path
    wheel: Path

    @property
    def version(self) -> str:
        """What the wheel's name says."""
        return self.wheel.name.split("-")[1]


def unpacked(sdist: Path, directory: Path) -> Path:
    """Unpack an sdist; return the directory of its files."""
    with tarfile.open(sdist) as archive:
        archive.extractall(directory, filter="data")
    return directory / sdist.name.removesuffix(".tar.gz")


def wheel_of(source: Path) -> Path:
    """Build the wheel of a directory beside it."""
    checked([sys.executable, "-m", "hatchling", "build", "-d", source.parent, "-t", "wheel"], source)
    (wheel,) = source.parent.glob("*.whl")
    return wheel


def install(directory: Path, *packages: Path | str) -> Path:
    """Make an environment of these packages and what they need; return the directory of its commands."""
    pins = re.findall(r"(?m)^([\w.-]+==[^\\\n]+?) \\?$", (ROOT / "requirements-dev.txt").read_text())
    (directory / "pins.txt").write_text("\n".join(pins))
    checked([sys.executable, "-m", "venv", "--without-pip", "env"], directory)
    commands = directory / "env" / "bin"
    checked([ROOT / "scripts" / "install", commands / "python", "-c", directory / "pins.txt", *packages], directory)
    return commands
