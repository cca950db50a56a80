"""Each alert leads to a section of a page that names a command, and the command sees what the alert saw."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from repot.cli.main import main

ROOT = Path(__file__).parents[2]

_RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load((ROOT / "compose" / "prometheus" / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
}
EACH_ALERT = pytest.mark.parametrize("alert", _RULES)

#: Where the page is, as Prometheus fills it in.
_PAGE = "{{ $externalLabels.repot_docs }}/"


def section(alert: str) -> str:
    """Return the section to which an alert leads."""
    url: str = _RULES[alert]["annotations"]["runbook_url"]
    assert url.startswith(_PAGE)
    name, _, anchor = url.removeprefix(_PAGE).partition("#")
    parts: list[str] = re.split(r"(?m)^#+ (.+)\n", (ROOT / "docs" / name).read_text())
    found = dict(zip((title.lower().replace(" ", "-") for title in parts[1::2]), parts[2::2], strict=True))
    assert anchor in found
    return found[anchor]


def commands(text: str) -> list[list[str]]:
    """Return the words after `repot` of each line in the blocks of a section."""
    blocks = re.findall(r"(?ms)^```sh[^\n]*\n(.*?)^```", text)
    lines = [line for block in blocks for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("repot ")]


def resolved(words: list[str]) -> click.Command:
    """Return the command that words name."""
    command: click.Command = main
    for word in words:
        if not isinstance(command, click.Group):
            break
        found = command.get_command(click.Context(command), word)
        assert found, words
        command = found
    return command


@EACH_ALERT
def test_an_alert_leads_to_a_section_with_commands_that_exist(alert: str) -> None:
    found = commands(section(alert))
    assert found
    for words in found:
        command = resolved(words)
        assert not isinstance(command, click.Group) or command.invoke_without_command, words


@EACH_ALERT
def test_a_command_of_its_section_sees_what_an_alert_saw(alert: str) -> None:
    """Every metric of repot's that its expression compares, but for those that only choose."""
    found = commands(section(alert))
    seen = [name for words in found if words[:2] == ["healthcheck", "metrics"] for name in words[2:]]
    metrics = set(re.findall(r"\brepot_\w+", _RULES[alert]["expr"]))
    # the relay's numbers are those of its table, and it has no sidecar
    of_outbox = {one for one in metrics if one.startswith("repot_outbox_")}
    assert not of_outbox or any(words[:2] == ["outbox", "list"] for words in found)
    assert {one for one in metrics if one.startswith(tuple(seen))} or metrics == of_outbox
    # and nothing that does not exist
    page = (ROOT / "docs" / "healthcheck.md").read_text()
    assert [name for name in seen if f"`{name}" not in page] == []


def test_no_section_is_left_of_an_alert_that_is_gone() -> None:
    titles = re.findall(r"(?m)^### (.+)$", (ROOT / "docs" / "runbook.md").read_text())
    assert list(_RULES) == titles
