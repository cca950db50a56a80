"""Commands print through one place."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import repot
from repot.cli.columns import columns
from repot.cli.output import echo, echo_json, echo_line
from support.hostile import CONTROLS, PLANTED, SHAPES, is_safe

#: Calls of `click.echo` that print no text of others: repot's own files, help and SQL; reports that mask and escape by
#: themselves; the addresses of `repot up` and the token of a page, which are to be used.
_ALLOWED = {
    "output.py": 3,
    "up.py": 7,
    "completion.py": 1,
    "init.py": 8,
    "config.py": 2,
    "demo.py": 1,
    "doctor.py": 4,
    "chaos.py": 1,
    "chaos_load.py": 2,
    "rollout_page.py": 1,
    "store.py": 1,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_text_and_json_are_masked_and_escaped(shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = f"{CONTROLS} {shape}"
    echo(f"one\n{hostile}")
    echo_line(f"one\n{hostile}", err=True)
    echo_json({"error": hostile, "queues": [hostile]})
    shown = capsys.readouterr()
    assert is_safe(shown.out)
    assert is_safe("".join(columns([(hostile, "two")], ("a", "b"))))
    assert is_safe(shown.err)
    assert len(shown.err.splitlines()) == 1


def test_json_keeps_numbers_and_other_text(capsys: pytest.CaptureFixture[str]) -> None:
    data = {"fencing_token": 7, "message": f"a\nb {CONTROLS}", "none": None, "list": [1, "x"]}
    echo_json(data)
    assert data == json.loads(capsys.readouterr().out)


def test_json_masks_what_a_secret_key_names(capsys: pytest.CaptureFixture[str]) -> None:
    echo_json({"headers": {"x-password": PLANTED, "x": [f"token={PLANTED}"]}})
    assert PLANTED not in capsys.readouterr().out


def test_no_command_prints_past_the_one_place() -> None:
    commands = Path(repot.__file__).parent / "cli"
    texts = {path.name: path.read_text() for path in commands.glob("*.py")}
    found = {name: count for name, text in texts.items() if (count := len(re.findall(r"click\.s?echo\(", text)))}
    assert found == _ALLOWED
