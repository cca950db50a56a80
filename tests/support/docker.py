"""Docker's command."""

from __future__ import annotations

import subprocess


def docker(*arguments: str) -> str:
    """Run it, and return what it prints."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
