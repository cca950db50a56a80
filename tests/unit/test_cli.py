"""The command: help, errors, exit codes, streams."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner, Result

from repot.chaos.scenarios.catalogue import SCENARIOS
from repot.chaos.scenarios.profiles import PROFILES
from repot.cli.main import main
from repot.config import HealthcheckSettings, WorkerSettings, variable

if TYPE_CHECKING:
    from pathlib import Path

PLANTED = "hunter2-s3cret"


def repot(*arguments: str, **variables: str) -> Result:
    return CliRunner().invoke(main, arguments, env=variables)


def repot_process(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run in a process of its own, because the application is created on import."""
    command = [sys.executable, "-m", "repot", *arguments]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def everything(command: Any = main, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return every command and group, as the words that call it."""
    found, context = [path], click.Context(command)
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        found += everything(command.get_command(context, name), (*path, name))
    return found


@pytest.mark.parametrize("path", everything(), ids=" ".join)
def test_every_command_explains_itself(path: tuple[str, ...]) -> None:
    found = repot(*path, "--help")
    assert 0 == found.exit_code
    assert "Usage:" in found.stdout


def test_help_loads_nothing_heavy() -> None:
    """So `repot --help` is quick."""
    code = (
        "import sys, repot.cli.main; "
        "print({'celery', 'kombu', 'pydantic', 'redis', 'rich', 'requests', 'jinja2'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "set()" == found.stdout.strip()


def test_a_command_is_imported_when_it_is_used() -> None:
    code = (
        "import sys, click; from repot.cli.main import COMMANDS, main; "
        "main.get_command(click.Context(main), 'leases'); "
        "print([one for one in COMMANDS if f'repot.cli.{one}' in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "['leases']" == found.stdout.strip()


def test_the_version_is_that_of_the_package() -> None:
    assert f"repot, version {version('repot')}" == repot("--version").stdout.strip()


def test_config_show_gives_values_and_origins_and_no_password() -> None:
    url = f"amqp://user:{PLANTED}@host//"
    for arguments in (["--json"], ["--all"], []):
        found = repot_process(
            "config", "show", *arguments, WORKER_BROKER_URL=url, WORKER_RESULT_BACKEND=f"redis://:{PLANTED}@host/1"
        )
        assert 0 == found.returncode, found.stderr
        assert PLANTED not in found.stdout + found.stderr
        assert "user:**@host" in found.stdout


def test_config_show_names_variables_of_other_programs() -> None:
    shown = repot_process("config", "show", "--json", WORKER_LOGLEVEL="info", HEALTHCHECK_INTERVAL="5s")
    assert 0 == shown.returncode
    assert "WORKER_LOGLEVEL is set, but is not a setting of repot" in shown.stderr
    assert "HEALTHCHECK_INTERVAL is set" in shown.stderr


def test_config_show_as_json_is_data() -> None:
    lines = json.loads(repot_process("config", "show", "--json").stdout)["settings"]
    assert {"value": 7200, "origin": "WORKER_VISIBILITY_TIMEOUT (repot's default)"} == lines[
        "broker_transport_options.visibility_timeout"
    ]


def test_every_variable_is_listed() -> None:
    found = {line["name"] for line in json.loads(repot("config", "variables", "--json").stdout)}
    models = (WorkerSettings, HealthcheckSettings)
    assert {variable(name, model) for model in models for name in model.model_fields} == found


@pytest.mark.parametrize(
    ("variables", "said", "exit_code"),
    [
        ({"WORKER_BROKER_URL": f"amqp://user:{PLANTED}#@host//"}, "WORKER_BROKER_URL", 2),
        ({"CELERY_BROKER_URL": f"amqp://user:{PLANTED}@host//"}, "CELERY_BROKER_URL", 2),
        ({"WORKER_HARTBEAT": "5"}, "did you mean WORKER_HEARTBEAT", 2),
        ({"WORKER_APP": "no_such_module"}, "no module named 'no_such_module'", 6),
    ],
)
@pytest.mark.parametrize("command", [("config", "show"), ("doctor",)])
def test_wrong_settings_end_every_command_with_one_message(
    command: tuple[str, ...], variables: dict[str, str], said: str, exit_code: int
) -> None:
    found = repot(*command, **variables)
    assert exit_code == found.exit_code
    assert found.stderr.startswith("error: ")
    assert said in found.stderr
    assert "hint: " in found.stderr
    assert "Traceback" not in found.output
    assert PLANTED not in found.output
    assert not found.stdout


CONFIGURED = """
from celery import Celery
import repot
app = Celery("shop", broker="redis://localhost:1/0")
repot.configure(app)
"""
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
    assert 2 == found.returncode
    # Celery's worker may warn of its own
    assert "\nerror: " in f"\n{found.stderr}"
    assert "WORKER_BROKER_URL" in found.stderr
    assert "hint: " in found.stderr
    assert "Traceback" not in found.stderr
    assert PLANTED not in found.stdout + found.stderr


def test_findings_of_the_doctor_are_the_exit_code_of_celerys_command(tmp_path: Path) -> None:
    found = beside(CONFIGURED, BY_CELERY, tmp_path, WORKER_BROKER_URL="amqp://", WORKER_PUBLISHER_CONFIRMS="0")
    assert 4 == found.returncode, found.stderr
    assert "RPT204" in found.stdout


def beside(text: str, command: tuple[str, ...], directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a module as a command in the directory of an application."""
    (directory / "shop.py").write_text(text)
    whole = [sys.executable, "-m", *command]
    return subprocess.run(whole, cwd=directory, env=variables, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"WORKER_BROKER_URL": f"amqp://user:{PLANTED}#@host//"}, "WORKER_BROKER_URL"),
        ({"CELERY_BROKER_URL": f"amqp://user:{PLANTED}@host//"}, "CELERY_BROKER_URL"),
        ({"WORKER_HARTBEAT": "5"}, "did you mean WORKER_HEARTBEAT"),
    ],
)
def test_a_profile_of_wrong_settings_is_refused(variables: dict[str, str], said: str) -> None:
    found = repot("chaos", "run", "no-fault", "--profile", "environment", **variables)
    assert 2 == found.exit_code
    assert said in found.stderr
    assert PLANTED not in found.output


def test_celerys_own_command_shows_the_same_message() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "repot.worker.app", "worker"],
        env={"WORKER_BROKER_URL": f"amqp://user:{PLANTED}#@host//"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 2 == found.returncode
    assert found.stderr.startswith("error: the environment is not a valid configuration")
    assert "Traceback" not in found.stderr
    assert PLANTED not in found.stdout + found.stderr


def test_chaos_list_names_every_scenario() -> None:
    found = json.loads(repot("chaos", "list", "--json").stdout)
    assert list(SCENARIOS) == [scenario["name"] for scenario in found["scenarios"]]
    assert list(PROFILES) == [profile["name"] for profile in found["profiles"]]
    shown = repot("chaos", "list").stdout
    assert all(name in shown for name in SCENARIOS)


def test_an_unknown_scenario_is_a_usage_error() -> None:
    found = repot("chaos", "run", "earthquake")
    assert 2 == found.exit_code
    assert "earthquake" in found.stderr


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("link-d", ["link-down"]),
        ("link-down@be", ["link-down@before-receive", "link-down@before-ack"]),
        ("all@after-", ["all@after-effect", "all@after-ack"]),
        ("poison@", []),
        ("nothing@", []),
    ],
)
def test_scenarios_and_their_phases_are_completed(typed: str, offered: list[str]) -> None:
    words = {"_REPOT_COMPLETE": "bash_complete", "COMP_WORDS": f"repot chaos run {typed}", "COMP_CWORD": "3"}
    found = CliRunner().invoke(main, prog_name="repot", env=words).stdout
    assert offered == [line.removeprefix("plain,") for line in found.split()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script(shell: str) -> None:
    assert "_REPOT_COMPLETE" in repot("completion", shell).stdout
