"""`repot`, and Celery's own command, as processes: messages, exit codes, what they show."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PLANTED = "hunter2-s3cret"


def repot_process(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run in a process of its own, because the application is created on import."""
    command = [sys.executable, "-m", "repot", *arguments]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def test_config_show_gives_values_and_origins_and_no_password() -> None:
    url = f"amqp://user:{PLANTED}@host//"
    for arguments in (["--json"], ["--all"], []):
        found = repot_process(
            "config", "show", *arguments, WORKER_BROKER_URL=url, WORKER_RESULT_BACKEND=f"redis://:{PLANTED}@host/1"
        )
        assert found.returncode == 0, found.stderr
        assert PLANTED not in found.stdout + found.stderr
        assert "user:**@host" in found.stdout


def test_config_show_names_variables_of_other_programs() -> None:
    shown = repot_process("config", "show", "--json", WORKER_LOGLEVEL="info", HEALTHCHECK_INTERVAL="5s")
    assert shown.returncode == 0
    assert "WORKER_LOGLEVEL is set, but is not a setting of repot" in shown.stderr
    assert "HEALTHCHECK_INTERVAL is set" in shown.stderr


def test_config_show_as_json_is_data() -> None:
    lines = json.loads(repot_process("config", "show", "--json").stdout)["settings"]
    assert lines["broker_transport_options.visibility_timeout"] == {
        "value": 7200,
        "origin": "WORKER_VISIBILITY_TIMEOUT (repot's default)",
    }


CONFIGURED = """
from celery import Celery
import repot
app = Celery("shop", broker="redis://localhost:1/0")
repot.configure(app)
"""


@pytest.mark.parametrize("option", ["-A", "--app", "WORKER_APP"])
def test_config_show_of_an_application(tmp_path: Path, option: str) -> None:
    """Named as for Celery's own command, or by the variable; a typing error is no repot of its own."""
    (tmp_path / "shop.py").write_text(CONFIGURED)
    for name, code in (("shop", 0), ("shpo", 6)):
        given, named = ([], {option: name}) if option == "WORKER_APP" else ([option, name], {})
        found = repot_process("config", "show", "--json", *given, PYTHONPATH=str(tmp_path), **named)
        assert code == found.returncode, found.stderr
    (tmp_path / "shop.py").rename(tmp_path / "shpo.py")
    shown = json.loads(repot_process("config", "show", "--json", *given, PYTHONPATH=str(tmp_path), **named).stdout)
    assert shown["app"] == "shpo"
    assert shown["settings"]["broker_url"]["value"] == "redis://localhost:1/0"


#: Celery keeps what a receiver of its signals raises to itself.
LATER = """
from celery import Celery
import repot
app = Celery("shop", broker="redis://localhost:1/0")
@app.on_after_configure.connect
def configured(sender, **_):
    repot.configure(sender)
"""


BY_WORKER = ("celery", "-A", "shop", "worker", "--pool", "solo")


BY_CELERY = ("celery", "-A", "shop", "repot", "doctor")


@pytest.mark.parametrize(
    ("text", "command"),
    [(CONFIGURED, BY_CELERY), (CONFIGURED, BY_WORKER), (LATER, BY_CELERY), (LATER, BY_WORKER)],
    ids=["doctor", "worker", "doctor, later", "worker, later"],
)
def test_a_refused_variable_is_one_message_of_celerys_command(
    text: str, command: tuple[str, ...], tmp_path: Path
) -> None:
    found = beside(text, command, tmp_path, WORKER_BROKER_URL=f"amqp://user:{PLANTED}#@host//")
    assert found.returncode == 2
    # Celery's worker may warn of its own
    assert "\nerror: " in f"\n{found.stderr}"
    assert "WORKER_BROKER_URL" in found.stderr
    assert "hint: " in found.stderr
    assert "Traceback" not in found.stderr
    assert PLANTED not in found.stdout + found.stderr


@pytest.mark.parametrize("text", [CONFIGURED, LATER], ids=["", "later"])
def test_a_refused_option_is_one_message_of_celerys_command(text: str, tmp_path: Path) -> None:
    found = beside(text, (*BY_WORKER, "--autoscale=8,2"), tmp_path, WORKER_BROKER_URL="amqp://localhost:1//")
    assert found.returncode == 2
    assert "\nerror: " in f"\n{found.stderr}"
    assert "--autoscale is '8,2'" in found.stderr
    assert "write 8,8 for a pool of one size" in found.stderr
    assert "Traceback" not in found.stderr


def test_findings_of_the_doctor_are_the_exit_code_of_celerys_command(tmp_path: Path) -> None:
    found = beside(CONFIGURED, BY_CELERY, tmp_path, WORKER_BROKER_URL="amqp://", WORKER_PUBLISHER_CONFIRMS="0")
    assert found.returncode == 4, found.stderr
    assert "RPT204" in found.stdout


def beside(text: str, command: tuple[str, ...], directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a module as a command in the directory of an application."""
    (directory / "shop.py").write_text(text)
    whole = [sys.executable, "-m", *command]
    return subprocess.run(whole, cwd=directory, env=variables, capture_output=True, text=True, check=False, timeout=60)


def test_celerys_own_command_shows_the_same_message() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "repot.worker.app", "worker"],
        env={"WORKER_BROKER_URL": f"amqp://user:{PLANTED}#@host//"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 2
    assert found.stderr.startswith("error: the environment is not a valid configuration")
    assert "Traceback" not in found.stderr
    assert PLANTED not in found.stdout + found.stderr
