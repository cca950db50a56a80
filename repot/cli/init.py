"""`repot init`: write configuration files for a new deployment."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click

from repot.init import BROKERS, PREVIOUS, initialize, is_addition, is_ignored_by_git
from repot.init.rollout import DOTENV, NAME

#: As `celery -A` takes it; nothing that a shell or systemd would read as more than a word.
_APP = re.compile(r"[A-Za-z_][\w.]*(:[A-Za-z_][\w.]*)?", re.ASCII)


def _application(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    if not _APP.fullmatch(value):
        message = f"{value!r} is not the name of a Celery application; write it as in shop.celery:app"
        raise click.BadParameter(message, ctx=ctx, param=parameter)
    return value


def _rollout_name(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    if value and not NAME.fullmatch(value):
        message = f"{value!r} is not the name of a rollout; write it with a-z, A-Z, 0-9, dot, _ and - only"
        raise click.BadParameter(message, ctx=ctx, param=parameter)
    return value


@click.command()
@click.argument("directory", type=click.Path(path_type=Path), default=".")
@click.option("--broker", type=click.Choice(BROKERS), help="The kind of broker that tasks are sent to.")
@click.option(
    "--app",
    default="repot.worker.app",
    show_default=True,
    callback=_application,
    help="The Celery application, as for `celery -A`.",
)
@click.option(
    "--rollout",
    metavar="NAME",
    default="",
    callback=_rollout_name,
    help="Write what a rollout of this name needs as well; beside an existing .env only that.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Replace existing files; .env keeps its credentials and the variables that repot does not set.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the written files and kept variables as JSON.")
def init(directory: Path, broker: str | None, app: str, rollout: str, *, force: bool, as_json: bool) -> None:
    """Write .env, compose.yaml, supervisord.conf and systemd/worker.service to start from.

    DIRECTORY is the current directory by default. Credentials are generated; only the
    owner can read .env. Comments in the files explain each line. Without --force,
    existing files are not changed.

    With --rollout, also .env.rollout, compose.rollout.yaml, supervisord.rollout.conf and
    kubernetes/rollout.yaml: workers on both brokers, their beats, and the controller. The
    target is the other broker in .env, BRIDGE_READ_URL. See docs/rollout-deploy.md.
    """
    is_added = is_addition(directory, rollout)
    if broker is None and not is_added:
        message = "Missing option '--broker'. Choose from: " + ", ".join(BROKERS)
        raise click.UsageError(message)
    written = initialize(directory, broker=broker or "", app=app, force=force, rollout=rollout)
    paths = [str(path) for path in written.files]
    if as_json:
        click.echo(json.dumps({"written": paths, "kept": list(written.kept), "replaced": list(written.replaced)}))
    else:
        click.echo("\n".join(paths))
    if written.kept:
        click.echo(f"kept from the previous .env: {', '.join(written.kept)}", err=True)
    if written.replaced:
        click.echo(f"replaced, as {PREVIOUS} still has it: {', '.join(written.replaced)}", err=True)
    for name in (".env", *([PREVIOUS] if written.replaced else []), *([DOTENV] if rollout else [])):
        if not is_ignored_by_git(directory, name):
            message = f"git does not ignore {name}, which contains passwords: add the line `{name}` to .gitignore"
            click.echo(message, err=True)
    if is_added:
        click.echo("next: docs/rollout-deploy.md", err=True)
    else:
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
