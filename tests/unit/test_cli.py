"""The command: help, errors, exit codes, streams."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from repot.chaos.scenarios.catalogue import SCENARIOS
from repot.chaos.scenarios.profiles import PROFILES
from repot.cli.main import main
from repot.config import HealthcheckSettings, WorkerSettings, variable

PLANTED = "hunter2-s3cret"


def repot(*arguments: str, **variables: str) -> Result:
    return CliRunner().invoke(main, arguments, env=variables)


def everything(command: Any = main, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return every command and group, as the words that call it."""
    found, context = [path], click.Context(command)
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        found += everything(command.get_command(context, name), (*path, name))
    return found


@pytest.mark.parametrize("path", everything(), ids=" ".join)
def test_every_command_explains_itself(path: tuple[str, ...]) -> None:
    found = repot(*path, "--help")
    assert found.exit_code == 0
    assert "Usage:" in found.stdout


def test_help_loads_nothing_heavy() -> None:
    """So `repot --help` is quick."""
    code = (
        "import sys, repot.cli.main; "
        "print({'celery', 'kombu', 'pydantic', 'redis', 'rich', 'requests', 'jinja2'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_a_command_is_imported_when_it_is_used() -> None:
    code = (
        "import sys, click; from repot.cli.main import COMMANDS, main; "
        "main.get_command(click.Context(main), 'leases'); "
        "print([one for one in COMMANDS if f'repot.cli.{one}' in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "['leases']"


def test_the_version_is_that_of_the_package() -> None:
    assert f"repot, version {version('repot')}" == repot("--version").stdout.strip()


def test_every_variable_is_listed() -> None:
    found = {line["name"] for line in json.loads(repot("config", "variables", "--json").stdout)}
    models = (WorkerSettings, HealthcheckSettings)
    assert {variable(name, model) for model in models for name in model.model_fields} == found


@pytest.mark.parametrize(
    ("variables", "said", "exit_code"),
    [
        ({"WORKER_BROKER_URL": f"amqp://user:{PLANTED}#@host//"}, "WORKER_BROKER_URL", 2),
        ({"CELERY_BROKER_URL": f"amqp://user:{PLANTED}#@host//"}, "CELERY_BROKER_URL", 2),
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


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"WORKER_BROKER_URL": f"amqp://user:{PLANTED}#@host//"}, "WORKER_BROKER_URL"),
        ({"CELERY_BROKER_URL": f"amqp://user:{PLANTED}#@host//"}, "CELERY_BROKER_URL"),
        ({"WORKER_HARTBEAT": "5"}, "did you mean WORKER_HEARTBEAT"),
    ],
)
def test_a_profile_of_wrong_settings_is_refused(variables: dict[str, str], said: str) -> None:
    found = repot("chaos", "run", "no-fault", "--profile", "environment", **variables)
    assert found.exit_code == 2
    assert said in found.stderr
    assert PLANTED not in found.output


def test_chaos_list_names_every_scenario() -> None:
    found = json.loads(repot("chaos", "list", "--json").stdout)
    assert list(SCENARIOS) == [scenario["name"] for scenario in found["scenarios"]]
    assert list(PROFILES) == [profile["name"] for profile in found["profiles"]]
    shown = repot("chaos", "list").stdout
    assert all(name in shown for name in SCENARIOS)


def test_an_unknown_scenario_is_a_usage_error() -> None:
    found = repot("chaos", "run", "earthquake")
    assert found.exit_code == 2
    assert "earthquake" in found.stderr


@pytest.mark.skipif(not hasattr(click.exceptions, "NoSuchCommand"), reason="click suggests commands from 8.4 on")
@pytest.mark.parametrize("typed", [("dcotor",), ("move", "strat"), ("worker", "strat")], ids=" ".join)
def test_a_misspelt_command_gets_a_suggestion(typed: tuple[str, ...]) -> None:
    found = repot(*typed)
    assert found.exit_code == 2
    assert ("Did you mean" in found.stderr) == (typed[0] != "worker")


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


@pytest.mark.parametrize(
    ("option", "typed", "offered"),
    [
        ("--fault", "broker-", ["broker-killed", "broker-paused"]),
        ("--fault", "no-", ["no-fault"]),
        ("--profile", "redis-l", ["redis-late"]),
    ],
)
def test_faults_and_profiles_of_a_load_are_completed(option: str, typed: str, offered: list[str]) -> None:
    words = {"_REPOT_COMPLETE": "bash_complete", "COMP_WORDS": f"repot chaos load {option} {typed}", "COMP_CWORD": "4"}
    found = CliRunner().invoke(main, prog_name="repot", env=words).stdout
    assert offered == [line.removeprefix("plain,") for line in found.split()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script(shell: str) -> None:
    assert "_REPOT_COMPLETE" in repot("completion", shell).stdout


@pytest.mark.parametrize(
    "given", ["auditor:s3cret@mq:15672", "mq.internal", "http://a:s3cret@b;http://c:s3cret@d", "amqp://a:s3cret@b"]
)
@pytest.mark.parametrize(
    "words",
    [
        ["dlq", "list", "--management"],
        ["doctor", "--management-url"],
        ["move", "plan", "--from-management"],
        ["move", "plan", "--to-management"],
        ["rollout", "start", "friday", "--notify"],
    ],
    ids=" ".join,
)
def test_what_is_no_web_address_is_refused_and_not_shown(words: list[str], given: str) -> None:
    found = CliRunner().invoke(main, [*words, given])
    assert found.exit_code == 2, found.output
    assert f"'{words[-1]}'" in found.stderr
    assert "the address is not one http:// or https:// address" in found.stderr
    assert "s3cret" not in found.output
