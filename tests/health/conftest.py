"""What the tests of probes share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sidecars import Patient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from repot.brokers.local import Server


@pytest.fixture
def patient(server: Server, redis: Server, toxiproxy: Server, tmp_path: Path) -> Iterator[Patient]:
    """A worker that takes tasks, on each broker in turn."""
    with Patient(server, redis, toxiproxy, tmp_path) as found:
        found.await_ready()
        yield found
