"""The name of an application, and what is reported for one that cannot be loaded."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from repot.config import app_name, load
from repot.errors import AppNotFound
from repot.worker.app_loader import import_tasks, load_app

if TYPE_CHECKING:
    from pathlib import Path


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


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("trolley.celry", "There is 'trolley.celery'."),
        ("troley", "There is 'trolley'."),
        ("trolley.celery:app", "It has 'celery_app'."),
        ("bicycle", "as in shop.celery:app, by -A or WORKER_APP."),
    ],
)
def test_a_typing_error_has_the_name_that_is_most_alike(
    name: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trolley").mkdir()
    (tmp_path / "trolley" / "__init__.py").touch()
    (tmp_path / "trolley" / "celery.py").write_text("from celery import Celery\ncelery_app = Celery('trolley')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for loaded in ("trolley", "trolley.celery"):
        monkeypatch.delitem(sys.modules, loaded, raising=False)
    with pytest.raises(AppNotFound) as missing:
        load_app(name)
    assert missing.value.hint.endswith(hint)


def test_what_an_application_prints_is_no_result_of_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    application = "app = Celery('loud', include=['loud_tasks'], set_as_current=False)\n"
    (tmp_path / "loud.py").write_text(f"from celery import Celery\nprint('loaded')\n{application}")
    (tmp_path / "loud_tasks.py").write_text("print('tasks')\n")
    monkeypatch.syspath_prepend(tmp_path)
    import_tasks(load_app("loud"), "loud")
    assert capsys.readouterr() == ("", "loaded\ntasks\n")


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
