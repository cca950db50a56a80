"""The servers these tests need."""

from __future__ import annotations

import pytest

from repot.testbed import executables
from support.installed import require


@pytest.fixture(scope="session", autouse=True)
def _all_programs() -> None:
    for program in (executables.REDIS, executables.RABBITMQ, executables.TOXIPROXY):
        require(program)
