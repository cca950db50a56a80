"""What all tests of the doctor share."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from celery import _state

from repot.doctor.collect import read_app
from repot.doctor.config import read_config
from support.judging import stock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from celery import Celery

    from repot.doctor.facts import Facts

_BUILTINS = "celery.app.builtins"

HEAD = """from datetime import datetime, timedelta
from celery import Celery
from celery.exceptions import Reject
DAY = 24 * 60 * 60
app = Celery("shop", set_as_current=False)
app.conf.update(CONF)

"""


@pytest.fixture(autouse=True)
def _no_shared_tasks_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery gives the shared tasks of every module that was imported to each application of the process."""
    found: set[Callable[..., Any]] = _state._on_app_finalizers  # type: ignore[attr-defined]
    monkeypatch.setattr(_state, "_on_app_finalizers", {one for one in found if one.__module__ == _BUILTINS})


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Callable[[str], Facts]]:
    """Import the text of a module as the project's only one, and read its application."""
    name = f"shop_{uuid4().hex[:8]}"

    def load(text: str, encoding: str = "utf-8") -> Facts:
        path = tmp_path / f"{name}.py"
        path.write_text(HEAD + text, encoding=encoding)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        module.__dict__["CONF"] = stock()
        sys.modules[name] = module
        spec.loader.exec_module(module)
        app: Celery = module.app
        return read_app(app, name, read_config(tmp_path))

    yield load
    sys.modules.pop(name, None)
