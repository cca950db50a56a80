"""Compare what a command prints with the schema that `repot schema` prints for it."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner
from jsonschema import Draft202012Validator

from repot.cli.main import main

#: These add fields to the types of which the schema is made.
OPEN = ("chaos report", "chaos run", "demo")


def schema(command: str) -> dict[str, Any]:
    """The schema as a user gets it."""
    done = CliRunner().invoke(main, ["schema", *command.split()])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check(command: str, text: str) -> Any:
    """Validate an output; return it as data. A field that the schema does not have is an error here."""
    found = json.loads(text)
    made = schema(command)
    Draft202012Validator.check_schema(made)
    Draft202012Validator(made if command in OPEN else _closed(made)).validate(found)
    return found


def _closed(part: Any) -> Any:
    if isinstance(part, list):
        return [_closed(one) for one in part]
    if not isinstance(part, dict):
        return part
    closed = {name: _closed(inner) for name, inner in part.items()}
    return closed | {"additionalProperties": False} if "properties" in part else closed
