"""What the tests of probes share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.sidecars import ProbedWorker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from repot.testbed import Server


@pytest.fixture
def probed(server: Server, redis: Server, toxiproxy: Server, tmp_path: Path) -> Iterator[ProbedWorker]:
    """A worker that takes tasks, on each broker in turn."""
    with ProbedWorker(server, redis, toxiproxy, tmp_path) as found:
        found.await_ready()
        yield found
