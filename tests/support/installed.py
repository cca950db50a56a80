"""A server that is not installed skips its tests at home and fails them in CI."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NoReturn

import pytest

from repot.errors import ProgramMissing

if TYPE_CHECKING:
    from repot.testbed.executables import Executable


def require(program: Executable) -> None:
    """Skip, or in CI fail, without a server program."""
    try:
        program.find()
    except ProgramMissing as error:
        absent(str(error))


def absent(problem: str) -> NoReturn:
    """Skip, or in CI fail."""
    if os.environ.get("CI"):
        pytest.fail(problem)
    pytest.skip(problem)
