"""A setting does something: some code reads it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import repot
from repot.config.settings import WorkerSettings

PACKAGE = Path(repot.__file__).parent
#: Where settings are defined and checked against each other.
DEFINED = PACKAGE / "config" / "settings.py"
SOURCES = "\n".join(path.read_text() for path in sorted(PACKAGE.rglob("*.py")) if path != DEFINED)


def is_read(name: str, sources: str) -> bool:
    """Return whether code takes an attribute of this name, or names it in a text."""
    return re.search(rf"""\.{name}\b|["']{name}["']""", sources) is not None


@pytest.mark.parametrize("name", WorkerSettings.model_fields)
def test_a_setting_is_read(name: str) -> None:
    assert is_read(name, SOURCES), f"{name} is a setting, and nothing in repot/ reads it"


def test_one_that_nothing_reads_would_be_noticed() -> None:
    assert not is_read("broker_colour", SOURCES)
    assert is_read("broker_colour", "settings.broker_colour")
