"""`repot schema`: the JSON schema of what a command prints."""

from __future__ import annotations

import difflib

import click

from repot.cli.output import echo, echo_json


@click.command()
@click.argument("words", metavar="[COMMAND]", nargs=-1)
def schema(words: tuple[str, ...]) -> None:
    """Print the JSON schema of the output of COMMAND with --json, as in `repot schema move status`.

    Without COMMAND, list the commands that have one. The number at the end of `$id` is the
    schema's version: it grows when a field goes, or changes its type or meaning; fields may
    come in without that.
    """
    from repot.cli.outputs import OUTPUTS, schema_of

    command = " ".join(words)
    if not command:
        echo("\n".join(OUTPUTS))
        return
    if command not in OUTPUTS:
        near = difflib.get_close_matches(command, OUTPUTS, n=1)
        hint = f"is `{near[0]}` meant?" if near else "`repot schema` lists those that have one"
        message = f"`repot {command}` has no output with --json; {hint}"
        raise click.UsageError(message)
    echo_json(schema_of(command))
