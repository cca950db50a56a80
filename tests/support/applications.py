"""Environments of applications with a Celery that repot does not run with (`scripts/environment application-4.4`)."""

from __future__ import annotations

import fcntl
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: The name of an environment, with its Celery.
RELEASES = {"application-4.4": "4.4.7", "application-5.2": "5.2.7"}


def interpreter(name: str) -> str:
    """Return the Python of an environment; it is made at first. Skips where the Python is missing."""
    python = _make(name)
    if not python:
        pytest.skip(f"scripts/environment {name} made none: the Python of its time, or a package, is not to be had")
    return python


@cache
def _make(name: str) -> str:
    (ROOT / ".tools").mkdir(exist_ok=True)
    with (ROOT / f".tools/{name}.lock").open("w") as lock:
        # the processes of a run ask for it at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = subprocess.run([ROOT / "scripts/environment", name], capture_output=True, text=True, check=False)
    return str(ROOT / made.stdout.strip()) if made.returncode == 0 and made.stdout.strip() else ""
