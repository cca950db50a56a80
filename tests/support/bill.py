"""The task of the applications in `judging.py`, alone: the doctor reads the module of a task once for each of them."""

from __future__ import annotations


def bill() -> None:
    """Send a bill."""
