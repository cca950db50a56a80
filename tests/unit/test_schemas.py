"""`repot schema`: each command with `--json` has one, and what those without servers print is valid."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import click
import pytest
from click.testing import CliRunner
from jsonschema import ValidationError

from repot.chaos.report import files, load_report
from repot.chaos.report.result import TaskResult
from repot.cli.main import main
from repot.cli.outputs import OUTPUTS, VERSIONS
from repot.config import ExplicitSettings
from repot.idempotency.fingerprint import Fingerprint
from repot.idempotency.records import Acquired
from repot.idempotency.stores import open_store
from support.campaigns import campaign
from support.leases import lease_request
from support.schemas import check, schema

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def commands(command: click.Command = main, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yield each command that does something, with the words that call it."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner
            yield from commands(inner, (*path, name))
    if not isinstance(command, click.Group) or (path and command.invoke_without_command):
        yield " ".join(path), command


def prints_json(command: click.Command) -> bool:
    options = {name: one for one in command.params for name in one.opts}
    form = getattr(options.get("--format"), "type", None)
    return "--json" in options or "json" in getattr(form, "choices", ())


def test_each_command_with_json_has_a_schema() -> None:
    assert {name for name, command in commands() if prints_json(command)} == {*OUTPUTS}
    listed = CliRunner().invoke(main, ["schema"])
    assert [*OUTPUTS] == listed.stdout.splitlines()
    assert {*VERSIONS} <= {*OUTPUTS}


@pytest.mark.parametrize("command", OUTPUTS)
def test_a_schema_is_versioned_and_titled(command: str) -> None:
    found = schema(command)
    assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert f"urn:repot:schema:{command.replace(' ', '-')}:{VERSIONS.get(command, 1)}" == found["$id"]
    assert f"repot {command}" == found["title"]


def test_a_command_without_an_output_is_refused_with_the_nearest() -> None:
    done = CliRunner().invoke(main, ["schema", "move", "statu"])
    assert done.exit_code == 2
    assert "is `move status` meant?" in done.stderr
    assert CliRunner().invoke(main, ["schema", "move", "pause"]).exit_code == 2


#: Commands without a server, and their exit codes.
LOCAL = (
    ("chaos list", "--json", 0),
    ("config show", "--json", 0),
    ("config variables", "--json", 0),
    ("doctor", "--format json --app support.guarded_app", 4),
    ("doctor explain", "RPT101 --json", 0),
    ("doctor rules", "--json", 0),
    ("healthcheck live", "--json", 4),
    ("healthcheck probe", "--json", 4),
    ("init", "--broker rabbitmq --json", 0),
    ("store migrate", "--json", 0),
    ("store migrate", "--json --execute", 0),
    ("outbox list", "--json", 0),
    ("leases list", "--json", 0),
    ("leases show", "task-1 --json", 0),
    ("leases reap", "--as done --json", 0),
    ("leases jobs", "--json", 0),
)


def test_what_is_printed_without_a_server_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store, prefix = f"sqlite:///{tmp_path}/store.db", uuid4().hex
    variables = {"WORKER_LEASE_STORE": store, "WORKER_LEASE_PREFIX": prefix, "WORKER_STATUS_DIR": str(tmp_path)}
    for command, options, code in LOCAL:
        done = CliRunner().invoke(main, [*command.split(), *options.split()], env=variables)
        assert code == done.exit_code, done.output
        found = check(command, done.stdout)
        if (command, "--json --execute") == (command, options):
            with_record = open_store(ExplicitSettings(lease_store=store, lease_prefix=prefix))
            who = lease_request("task-1", lease_s=0.001)
            assert isinstance(with_record.acquire(Fingerprint("a" * 64), who), Acquired)
            with_record.close()
        if command in ("leases list", "leases reap"):
            assert len(found) == 1


def test_reports_of_experiments_are_valid() -> None:
    text = files.as_json(campaign(repeat=2))
    check("chaos run", text)
    check("chaos report", text)
    data = json.loads(text)
    statements = {"heading": [{"text": "it runs twice", "proved": True}]}
    check("demo", json.dumps({"statements": statements} | data))
    results = tuple(one for result in campaign().results for one in result.task_results if isinstance(one, TaskResult))
    given: dict[str, Any] = dict.fromkeys(("took_s", "rate", "for_s", "behind_s"), 1.0)
    given |= dict.fromkeys(("app", "profile", "created", "product", "version", "left", "untested", "command"), "")
    given |= {"guard": True, "seed": 0, "versions": {}, "planned": 1, "sent": 1, "windows": (), "inapplicable": {}}
    check("chaos load", load_report.as_json(load_report.LoadReport(task_results=results, notices=(), **given)))


def test_a_field_of_another_type_or_a_missing_one_is_refused() -> None:
    rule = json.loads(CliRunner().invoke(main, ["doctor", "explain", "RPT101", "--json"]).stdout)
    for wrong in (rule | {"live": "yes"}, {name: rule[name] for name in rule if name != "fix"}, rule | {"new": 1}):
        with pytest.raises(ValidationError):
            check("doctor explain", json.dumps(wrong))
