"""`repot up`."""

from __future__ import annotations

import json

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as one line of JSON.")
def up(*, as_json: bool) -> None:
    """Start private Redis, RabbitMQ and Toxiproxy servers, and stop them on Ctrl-C.

    They listen on free loopback ports, keep nothing, and need no configuration.
    """
    from repot.brokers.local.stack import Stack
    from repot.cli import show

    click.echo("starting Redis, RabbitMQ and Toxiproxy ...", err=True)
    with Stack() as stack:
        if as_json:
            click.echo(json.dumps(show.addresses(stack.servers)))
        else:
            show.servers(stack.servers)
            for name, url, meaning in stack.variables():
                click.echo(f"export {name}='{url}'  # {meaning}")
        click.echo("serving until Ctrl-C", err=True)
        stack.wait()
        click.echo("stopping", err=True)
