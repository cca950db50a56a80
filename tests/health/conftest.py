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


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def steady(
    request: pytest.FixtureRequest, redis: Server, toxiproxy: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProbedWorker]:
    """A worker that the tests of a module share and none harms."""
    server = request.getfixturevalue(request.param)
    with ProbedWorker(server, redis, toxiproxy, tmp_path_factory.mktemp("steady")) as found:
        found.await_ready()
        yield found
