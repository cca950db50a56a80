"""Environments with other releases of Celery: those that repot runs with, and those that only applications have."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from repot.chaos.runner import workers

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
#: The minor releases of Celery that repot runs with; all but the newest have environments.
MINORS = ("5.4", "5.5", "5.6", "5.7")
#: Environments without repot, which does not run with their Celery.
RELEASES = {"application-4.4": "4.4.7", "application-5.2": "5.2.7"}


def interpreter(name: str) -> str:
    """Return the Python of an environment; it is made at first. Skips where the Python is missing."""
    python = _make(name)
    if not python:
        pytest.skip(f"scripts/environment {name} made none: the Python of its time, or a package, is not to be had")
    return python


def python_of(minor: str) -> str:
    """Return the Python of a minor release of Celery: this one, or that of its environment."""
    return sys.executable if version("celery").startswith(f"{minor}.") else interpreter(f"celery-{minor}")


@contextmanager
def workers_of(python: str) -> Iterator[None]:
    """Let `start_worker` start workers with another interpreter, for a `with`."""
    # packages are those of the interpreter, applications those of the tests
    theirs = SimpleNamespace(executable=python, path=[str(ROOT / "tests")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "sys", theirs)
        yield


@cache
def _make(name: str) -> str:
    made = subprocess.run([ROOT / "scripts/environment", name], capture_output=True, text=True, check=False)
    return str(ROOT / made.stdout.strip()) if made.returncode == 0 and made.stdout.strip() else ""
