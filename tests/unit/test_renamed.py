"""Former names of commands and settings: each is an error that names the new one."""

from __future__ import annotations

import pytest
from click.testing import CliRunner, Result

from repot.cli.main import COMMANDS, RENAMED, main
from repot.config import HealthcheckSettings, WorkerSettings, load, variable
from repot.config.renamed import RENAMED as RENAMED_SETTINGS
from repot.errors import ConfigInvalid

PLANTED = "hunter2-s3cret"


def repot(*arguments: str, **variables: str) -> Result:
    return CliRunner().invoke(main, arguments, env=variables)


@pytest.mark.parametrize(("former", "now"), [("dead", "dlq"), ("locks", "leases")])
@pytest.mark.parametrize("arguments", [[], ["list", "--json"], ["--help"]])
def test_a_former_command_is_an_error_that_names_the_new_one(former: str, now: str, arguments: list[str]) -> None:
    found = repot(former, *arguments)
    assert found.exit_code == 2
    assert f"`repot {former}` is now `repot {now}`." in found.stderr
    assert not found.stdout


def test_former_commands_are_not_commands() -> None:
    assert not set(RENAMED) & set(COMMANDS)
    assert set(RENAMED.values()) <= set(COMMANDS)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"WORKER_PULSE_FOLDER": "/run/x"}, "  WORKER_PULSE_FOLDER is now WORKER_STATUS_DIR"),
        ({"worker_lease_kept": "5"}, "  worker_lease_kept is now WORKER_IDEMPOTENCY_RETENTION"),
    ],
)
def test_the_settings_of_a_worker_refuse_a_former_name(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigInvalid) as caught:
        load()
    assert said in caught.value.message
    assert PLANTED not in str(caught.value)


def test_the_settings_of_a_sidecar_refuse_a_former_name() -> None:
    found = repot("healthcheck", "probe", "--ready", HEALTHCHECK_PULSE_TIMEOUT="60")
    assert found.exit_code == 2
    assert "HEALTHCHECK_PULSE_TIMEOUT is now HEALTHCHECK_STATUS_TIMEOUT" in found.stderr


def test_a_probe_refuses_a_former_name_of_a_setting() -> None:
    found = repot("healthcheck", "live", HEALTHCHECK_PULSE_TIMEOUT="60")
    assert found.exit_code == 2
    assert "HEALTHCHECK_PULSE_TIMEOUT is now HEALTHCHECK_STATUS_TIMEOUT" in found.stderr


def test_every_former_name_of_a_setting_leads_to_a_setting() -> None:
    known = {variable(name, model) for model in (WorkerSettings, HealthcheckSettings) for name in model.model_fields}
    assert set(RENAMED_SETTINGS.values()) <= known
    assert not set(RENAMED_SETTINGS) & known
