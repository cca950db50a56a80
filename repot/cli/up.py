"""`repot up`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from repot.testbed.stack import Stack


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as one line of JSON.")
@click.option(
    "--env",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Also write the addresses to a file for a shell: REDIS_URL, REDIS_RESULTS_URL, RABBITMQ_URL, "
    "RABBITMQ_MANAGEMENT_URL, TOXIPROXY_URL.",
)
def up(*, as_json: bool, env: Path | None) -> None:
    """Start private Redis, RabbitMQ and Toxiproxy servers; stop them on Ctrl-C.

    They listen on free loopback ports, need no configuration, and delete their data at the end.
    """
    from repot.cli import tables
    from repot.testbed.stack import Stack

    click.echo("starting Redis, RabbitMQ and Toxiproxy ...", err=True)
    with Stack() as stack:
        if env is not None:
            _write(stack, env)
        if as_json:
            click.echo(json.dumps(tables.addresses(stack.servers)))
        else:
            tables.servers(stack.servers)
            for name, url, meaning in stack.variables():
                click.echo(f"export {name}='{url}'  # {meaning}")
        click.echo("running; press Ctrl-C to stop", err=True)
        stack.wait()
        click.echo("stopping", err=True)


def _write(stack: Stack, path: Path) -> None:
    from repot.errors import ReportUnwritable
    from repot.sanitize import sanitize

    try:
        path.write_text("".join(f"{name}='{url}'\n" for name, url in stack.addresses().items()), encoding="utf-8")
    except OSError as error:
        message = f"the addresses cannot be written to {path}: {error.strerror}"
        raise ReportUnwritable(message, hint="Name another file.") from error
    click.echo(sanitize(f"{path} has the addresses"), err=True)
