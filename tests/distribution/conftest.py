"""What is built once for all tests of a process."""

from __future__ import annotations

import sys

import pytest

from support.wheels import ROOT, Built, checked, unpacked, wheel_of


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The sdist of this directory, and the wheel of that sdist."""
    directory = tmp_path_factory.mktemp("built")
    checked([sys.executable, "-m", "hatchling", "build", "-d", directory, "-t", "sdist"], ROOT)
    (sdist,) = directory.glob("*.tar.gz")
    return Built(sdist, wheel_of(unpacked(sdist, directory)))
