"""What all tests of the doctor share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery import _state

if TYPE_CHECKING:
    from collections.abc import Callable

_BUILTINS = "celery.app.builtins"


@pytest.fixture(autouse=True)
def _no_shared_tasks_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery gives the shared tasks of every module that was imported to each application of the process."""
    found: set[Callable[..., Any]] = _state._on_app_finalizers  # type: ignore[attr-defined]
    monkeypatch.setattr(_state, "_on_app_finalizers", {one for one in found if one.__module__ == _BUILTINS})
