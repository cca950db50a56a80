"""The servers these tests need; workers and commands are forked: their subject is not the start."""

from __future__ import annotations

import pytest

from repot.testbed import executables
from support.forked import pytest_configure, pytest_runtest_protocol
from support.installed import require

__all__ = ["pytest_configure", "pytest_runtest_protocol"]


@pytest.fixture(scope="session", autouse=True)
def _all_programs() -> None:
    for program in (executables.REDIS, executables.RABBITMQ, executables.TOXIPROXY):
        require(program)
