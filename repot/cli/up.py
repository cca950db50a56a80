"""`repot up`."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.testbed.stack import Stack


def _names(context: click.Context, option: click.Parameter, value: str) -> list[str]:
    from repot.testbed.stack import SERVERS

    names = [name.strip() for name in value.split(",")]
    for name in names:
        if name not in SERVERS:
            message = f"{name!r} is not one of {', '.join(SERVERS)}."
            raise click.BadParameter(message, context, option)
    return names


@click.command()
@click.option(
    "--only",
    metavar="NAMES",
    default="redis,rabbitmq,toxiproxy",
    show_default=True,
    callback=_names,
    help="Start only these; the others need not be installed.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as one line of JSON.")
@click.option(
    "--env",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Also write the addresses to a file for a shell: REDIS_URL, REDIS_RESULTS_URL, RABBITMQ_URL, "
    "RABBITMQ_MANAGEMENT_URL, TOXIPROXY_URL; of the servers that run.",
)
def up(*, only: list[str], as_json: bool, env: Path | None) -> None:
    """Start private Redis, RabbitMQ and Toxiproxy servers; stop them on Ctrl-C.

    They listen on free loopback ports, need no configuration, and delete their data at the end.
    """
    from repot.cli import tables
    from repot.testbed.stack import Stack

    click.echo(f"starting {', '.join(only)} ...", err=True)
    with _others_named(only), Stack(only) as stack:
        if env is not None:
            _write(stack, env)
        if as_json:
            click.echo(json.dumps(tables.addresses(stack.servers.values())))
        else:
            tables.servers(stack.servers.values())
            for meaning, variables in stack.variables().items():
                click.echo(f"\n# {meaning}")
                for name, url in variables.items():
                    click.echo(f"export {name}='{url}'")
        click.echo("running; press Ctrl-C to stop", err=True)
        stack.wait()
        click.echo("stopping", err=True)


@contextmanager
def _others_named(only: list[str]) -> Iterator[None]:
    """Let the error of a missing program say how to start without it."""
    from repot.errors import ProgramMissing

    try:
        yield
    except ProgramMissing as missing:
        if len(only) == 1:
            raise
        hint = f"{missing.hint}\n      To start the others alone: `repot up --only` with their names"
        raise ProgramMissing(missing.message, hint=hint) from missing


def _write(stack: Stack, path: Path) -> None:
    from repot.errors import FileUnusable
    from repot.sanitize import sanitize

    try:
        path.write_text("".join(f"{name}='{url}'\n" for name, url in stack.addresses().items()), encoding="utf-8")
    except OSError as error:
        message = f"the addresses cannot be written to {path}: {error.strerror}"
        raise FileUnusable(message, hint="Name another file.") from error
    click.echo(sanitize(f"{path} has the addresses"), err=True)
