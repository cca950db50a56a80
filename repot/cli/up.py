"""`repot up`."""

from __future__ import annotations

import json

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as one line of JSON.")
def up(*, as_json: bool) -> None:
    """Start private Redis, RabbitMQ and Toxiproxy servers; stop them on Ctrl-C.

    They listen on free loopback ports, need no configuration, and delete their data at the end.
    """
    from repot.cli import tables
    from repot.testbed.stack import Stack

    click.echo("starting Redis, RabbitMQ and Toxiproxy ...", err=True)
    with Stack() as stack:
        if as_json:
            click.echo(json.dumps(tables.addresses(stack.servers)))
        else:
            tables.servers(stack.servers)
            for name, url, meaning in stack.variables():
                click.echo(f"export {name}='{url}'  # {meaning}")
        click.echo("running; press Ctrl-C to stop", err=True)
        stack.wait()
        click.echo("stopping", err=True)
