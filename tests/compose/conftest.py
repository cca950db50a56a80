"""A Docker engine with Compose; without one, nothing here can be tested."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from repot.config import inherited_environment
from support.docker import docker
from support.stack import ROOT, Images

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", autouse=True)
def _engine() -> None:
    command = ["docker", "compose", "ls"]
    try:
        asked = subprocess.run(command, env=inherited_environment(without=()), capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no docker here")
    if asked.returncode:
        pytest.skip("no Docker engine with Compose answers")


@pytest.fixture(scope="session")
def images(_engine: None) -> Iterator[Images]:
    """All targets of the Dockerfile, under names of this session's own; the layers stay, for the next build."""
    mark = uuid4().hex[:8]
    made = Images(*(f"repot-test-{name}:{mark}" for name in Images._fields))
    for target, name in made._asdict().items():
        docker("build", "--quiet", "--target", target, "--tag", name, str(ROOT))
    yield made
    docker("image", "rm", "--no-prune", *made)
