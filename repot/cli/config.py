"""`repot config`."""

from __future__ import annotations

import json

import click

from repot.cli.columns import print_table
from repot.cli.output import echo, echo_json, prose_width


@click.group()
def config() -> None:
    """Show settings and the Celery configuration they produce."""


@config.command()
@click.option(
    "--app", "-A", metavar="APP", help="Application, as for `celery -A`.  [default: WORKER_APP, else repot's own]"
)
@click.option("--all", "everything", is_flag=True, help="Include settings that have Celery's default.")
@click.option("--json", "as_json", is_flag=True, help="Print all settings as JSON.")
def show(*, app: str | None, everything: bool, as_json: bool) -> None:
    """Show the effective Celery configuration of an application and the origin of each value.

    Passwords are masked. WORKER_* and HEALTHCHECK_* variables that are not settings of
    repot are listed on standard error, as is what the installed releases cannot do.
    """
    from repot.config import load, unknown_variables
    from repot.masking import masked
    from repot.upstream.capabilities import off
    from repot.worker.app_loader import load_app
    from repot.worker.effective_config import CELERY_DEFAULT, effective_config

    settings = load()
    name = app or settings.app
    found = list(effective_config(load_app(name)))
    missing = [f"{one.gives}: off, needs {one.needs}" for one in off()]
    for line in missing:
        echo(line, err=True)
    for line in unknown_variables():
        echo(line, err=True)
    if as_json:
        # the value of a secret setting is masked, and not its origin
        lines = {line.key: masked({"value": line.masked_value, "origin": line.origin}) for line in found}
        echo_json({"app": name, "settings": lines, "off": missing}, is_masked=True)
        return
    shown = [line for line in found if everything or line.origin != CELERY_DEFAULT]
    print_table(
        [(line.key, json.dumps(line.masked_value), line.origin) for line in shown], ("setting", "value", "from")
    )
    if len(shown) < len(found):
        echo(f"{len(found) - len(shown)} more have Celery's default; --all shows them", err=True)


@config.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def variables(*, as_json: bool) -> None:
    """List every WORKER_* and HEALTHCHECK_* variable with its default and meaning."""
    from repot.config import HealthcheckSettings, WorkerSettings
    from repot.config.settings import describe

    found = [*describe(WorkerSettings), *describe(HealthcheckSettings)]
    if as_json:
        echo_json([line._asdict() for line in found])
        return
    for line in found:
        click.echo(click.style(line.name, bold=True) + f"  (default: {line.default or 'none'})")
        click.echo(click.wrap_text(line.meaning, prose_width(), initial_indent="    ", subsequent_indent="    "))
