"""The name of an application, and what is reported for one that cannot be loaded."""

from __future__ import annotations

import pytest

from repot.config import app_name, load
from repot.errors import AppNotFound
from repot.worker.app_loader import load_app


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("nowhere.py", "no module named", "A module has no .py at its end."),
        ("nowhere", "no module named 'nowhere'", "Run in the project's directory"),
        ("os", "'os' makes no Celery application", "Name the variable that holds it"),
        ("os:app", "'os' has no 'app'", "Name the variable that holds it"),
    ],
)
def test_an_application_that_is_not_there_is_named_with_the_next_step(name: str, message: str, hint: str) -> None:
    with pytest.raises(AppNotFound) as missing:
        load_app(name)
    assert message in missing.value.message
    assert missing.value.hint.startswith(hint)


@pytest.mark.parametrize("variable", ["WORKER_APP", "worker_app", "Worker_App"])
def test_the_application_of_the_environment_is_that_of_the_settings(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "shop.celery:app")
    assert app_name() == load().app == "shop.celery:app"


def test_an_empty_variable_names_no_application(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose passes an unset variable so."""
    monkeypatch.setenv("WORKER_APP", "")
    assert not app_name()
