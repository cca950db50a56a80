"""Commands on whole projects are forked: their subject is not the start."""

from __future__ import annotations

from support.forked import pytest_configure, pytest_runtest_protocol

__all__ = ["pytest_configure", "pytest_runtest_protocol"]
