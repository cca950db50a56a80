"""The servers these tests need."""

from __future__ import annotations

import pytest

from installed import require
from repot.brokers.local import programs


@pytest.fixture(scope="session", autouse=True)
def _all_programs() -> None:
    for program in (programs.REDIS, programs.RABBITMQ, programs.TOXIPROXY):
        require(program)
