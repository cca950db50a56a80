"""What the tests of probes share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.servers import DEPLOYMENTS, servers_of
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


@pytest.fixture(scope="module", params=DEPLOYMENTS, ids="-".join)
def steady(
    request: pytest.FixtureRequest, toxiproxy: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProbedWorker]:
    """A worker that the tests of a module share and none harms."""
    with ProbedWorker(*servers_of(request), toxiproxy, tmp_path_factory.mktemp("steady")) as found:
        found.await_ready()
        yield found
