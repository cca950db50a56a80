"""`repot init`: write configuration files for a new deployment."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click

from repot.init import BROKERS, initialize, is_ignored_by_git

#: As `celery -A` takes it; nothing that a shell or systemd would read as more than a word.
_APP = re.compile(r"[A-Za-z_][\w.]*(:[A-Za-z_][\w.]*)?", re.ASCII)


def _application(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    if not _APP.fullmatch(value):
        message = f"{value!r} is not the name of a Celery application; write it as in shop.celery:app"
        raise click.BadParameter(message, ctx=ctx, param=parameter)
    return value


@click.command()
@click.argument("directory", type=click.Path(path_type=Path), default=".")
@click.option("--broker", type=click.Choice(BROKERS), required=True, help="The kind of broker that tasks are sent to.")
@click.option(
    "--app",
    default="repot.worker.app",
    show_default=True,
    callback=_application,
    help="The Celery application, as for `celery -A`.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Replace existing files; .env keeps its credentials and the variables that repot does not set.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the written files and kept variables as JSON.")
def init(directory: Path, broker: str, app: str, *, force: bool, as_json: bool) -> None:
    """Write .env, compose.yaml, supervisord.conf and systemd/worker.service to start from.

    DIRECTORY is the current directory by default. Credentials are generated; only the
    owner can read .env. Comments in the files explain each line. Without --force,
    existing files are not changed.
    """
    written = initialize(directory, broker=broker, app=app, force=force)
    paths = [str(path) for path in written.files]
    if as_json:
        click.echo(json.dumps({"written": paths, "kept": list(written.kept)}))
    else:
        click.echo("\n".join(paths))
    if written.kept:
        click.echo(f"kept from the previous .env: {', '.join(written.kept)}", err=True)
    if not is_ignored_by_git(directory):
        click.echo("git does not ignore .env, which contains passwords: add the line `.env` to .gitignore", err=True)
    _print_next_steps(directory, app)


def _print_next_steps(directory: Path, app: str) -> None:
    steps = [
        ("docker compose up -d --wait", "the servers"),
        ("set -a; . ./.env; set +a", "the settings, for this shell"),
        ("repot config show", "the resulting Celery configuration"),
        (f"celery -A {app} worker --loglevel INFO", "a worker"),
    ]
    if directory.resolve() != Path.cwd():
        steps.insert(0, (f"cd {shlex.quote(str(directory))}", ""))
    width = max(len(command) for command, _ in steps)
    click.echo("next:", err=True)
    for command, meaning in steps:
        click.echo(f"  {command:{width}}  # {meaning}" if meaning else f"  {command}", err=True)
