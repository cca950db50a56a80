"""A plugin of pytest that writes the tests which failed into a file, for a run that repeats them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

#: The property of a report that is its test's id as pytest takes it on its command line.
_ID = "id"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the file."""
    parser.addoption("--failed-to", metavar="FILE", help="write the id of each test that fails into a file")


@pytest.hookimpl(tryfirst=True)  # xdist adds the names of its groups to the ids
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Note each test's id."""
    for item in items:
        item.user_properties.append((_ID, f"{os.path.relpath(item.path)}::{item.nodeid.partition('::')[2]}"))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Write the file."""
    if path := config.getoption("failed_to"):
        reports = [*terminalreporter.stats.get("failed", ()), *terminalreporter.stats.get("error", ())]
        # one without a test, of a file that cannot be imported, has an id alone
        failed = {dict(getattr(report, "user_properties", ())).get(_ID, report.nodeid) for report in reports}
        Path(path).write_text("".join(f"{one}\n" for one in sorted(failed)))
