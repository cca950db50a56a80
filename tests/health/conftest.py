"""What the tests of probes share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.forked import pytest_configure, pytest_runtest_protocol  # noqa: F401 - workers and commands are forked
from support.servers import DISTINCT, servers_of
from support.sidecars import ProbedWorker, patient_worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from repot.testbed import Server
    from support.servers import Servers


@pytest.fixture
def probed(servers: Servers, toxiproxy: Server, tmp_path: Path) -> Iterator[ProbedWorker]:
    """A worker that takes tasks, in each deployment in turn."""
    with ProbedWorker(*servers, toxiproxy, tmp_path) as found:
        found.await_ready()
        yield found


@pytest.fixture
def patient(servers: Servers, toxiproxy: Server, tmp_path: Path) -> Iterator[ProbedWorker]:
    """The same for a test that breaks no link."""
    with patient_worker(*servers, toxiproxy, tmp_path) as found:
        yield found


@pytest.fixture(scope="module", params=DISTINCT, ids="-".join)
def shared(
    request: pytest.FixtureRequest, toxiproxy: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProbedWorker]:
    """A worker that the tests of a module share: each leaves it ready, and may give it a sidecar of its own."""
    with patient_worker(*servers_of(request), toxiproxy, tmp_path_factory.mktemp("shared")) as found:
        yield found
