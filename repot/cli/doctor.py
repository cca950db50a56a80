"""`repot doctor`, also available as `celery -A app repot doctor`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from repot.cli.output import echo, echo_json, terminal_width
from repot.cli.parameters import http_address

if TYPE_CHECKING:
    from celery import Celery


def _rule_names(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    from repot.doctor.config import rule_names

    return rule_names(given)


@click.group(invoke_without_command=True)
@click.option(
    "--app",
    "-A",
    "apps",
    multiple=True,
    metavar="APP",
    help="Application, as for `celery -A`; several are compared. Default: that of WORKER_APP.",
)
@click.option(
    "--python",
    metavar="PATH",
    type=click.Path(),
    help="Read the application with this interpreter: its own, with a Celery from 4.4 on. Nothing is installed there.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=120,
    show_default=True,
    metavar="SECONDS",
    help="With --python: how long the application may take to load.",
)
@click.option("--live", is_flag=True, help="Also read the broker; nothing changes there.")
@click.option("--target", metavar="URL", help="Judge the application as if it already ran on this broker.")
@click.option(
    "--management-url",
    metavar="URL",
    callback=http_address,
    help="RabbitMQ's management API. Default: WORKER_MANAGEMENT_URL, or port 15672 of the broker.",
)
@click.option(
    "--select",
    multiple=True,
    callback=_rule_names,
    metavar="IDS",
    help="Only these rules: RPT101,RPT2 (a prefix selects all its rules).",
)
@click.option("--ignore", multiple=True, callback=_rule_names, metavar="IDS", help="Not these rules.")
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning"]),
    help="Lowest severity that ends with exit code 4.  [default: error]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "sarif", "github"]),
    default="text",
    show_default=True,
    help="How to print the findings.",
)
@click.option(
    "--verbose",
    "-v",
    is_flag=True,
    help="List every task of a finding, waived findings and rules that were not judged.",
)
@click.pass_context
def doctor(
    context: click.Context,
    /,
    apps: tuple[str, ...],
    target: str | None,
    management_url: str | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    fail_on: str | None,
    form: str,
    **given: Any,  # noqa: ANN401 - the remaining options
) -> None:
    """Find tasks that can run twice, get lost or stop.

    Reads an application's configuration and tasks and, with --live, its broker. Exit code 4: there are findings of at
    least the severity --fail-on. Waive a finding in pyproject.toml or beside a task (docs/doctor.md).
    """
    if context.invoked_subcommand:
        return
    from repot.doctor.collect import DoctorRequest, collect_facts, collect_from, compare, configured_by_repot
    from repot.doctor.config import read_config
    from repot.doctor.registry import all_rules, select_rules
    from repot.doctor.reports import FORMATS, text
    from repot.doctor.runner import require_none, run_rules

    config = read_config(Path.cwd())
    rules = all_rules()
    in_use = select_rules(rules, select or config.select, ignore or config.ignore)
    wanted = {"target": target, "live": given["live"], "management_url": management_url or ""}
    wanted |= {"python": given["python"] or "", "timeout_s": given["timeout"]}
    loaded = _loaded(context) if not apps and not wanted["python"] else None
    names = [loaded[0]] if loaded else apps or [_named_app(config.root)]
    requests = [DoctorRequest(name, **wanted) for name in names]
    app = loaded[1] if loaded else None
    facts = compare([collect_from(app, one, config) if app else collect_facts(one, config) for one in requests])
    reports = [run_rules(one, in_use, config, rules) for one in facts]
    if form == "text":
        again = [configured_by_repot(request, config, one, app) for request, one in zip(requests, facts, strict=True)]
        reports = [
            replace(report, configured=run_rules(one, in_use, config, rules) if one else None)
            for report, one in zip(reports, again, strict=True)
        ]
        click.echo(text.render(reports, verbose=given["verbose"], width=terminal_width()))
        hint = ""
    else:
        found = FORMATS[form](reports)
        click.echo(found, nl=bool(found))
        echo(text.not_judged(reports), err=True)
        hint = "`repot doctor explain RULE` shows the reason and the fix."
    require_none(reports, fail_on or config.fail_on, hint)


@doctor.command()
@click.argument("rule")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def explain(rule: str, *, as_json: bool) -> None:
    """Show the reason and the fix of a rule."""
    from repot.doctor.registry import get_rule
    from repot.doctor.reports import data, text

    found = get_rule(rule)
    if as_json:
        echo_json(data.rule(found))
    else:
        click.echo(text.explain(found, terminal_width()))


@doctor.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def rules(*, as_json: bool) -> None:
    """List every rule."""
    from repot.doctor.registry import all_rules
    from repot.doctor.reports import data, text

    found = all_rules().values()
    if as_json:
        echo_json([data.rule(one) for one in found])
    else:
        click.echo(text.rule_table(found, terminal_width()))


def _loaded(context: click.Context) -> tuple[str, Celery] | None:
    """Return the application that `celery -A` has loaded, with its name."""
    app = getattr(context.find_root().obj, "app", None)
    if app is None:
        return None
    given = context.find_root().params.get("app")
    return given if isinstance(given, str) else str(getattr(app, "main", "") or "the application"), app


def _named_app(root: Path) -> str:
    """Return the application that WORKER_APP names.

    Raises:
        ConfigInvalid: it names none; repot's own, the default of a worker, is not the user's application.
    """
    from repot.config import app_name, load
    from repot.doctor.candidates import commands_for
    from repot.errors import ConfigInvalid

    if name := app_name():
        return name
    # an invalid environment is named first
    load()
    found = [f"`{one}`" for one in commands_for(root)]
    hint = f"This project has: {', '.join(found)}." if found else "As in `repot doctor -A shop.celery:app`."
    message = "no application is named, by -A or WORKER_APP"
    raise ConfigInvalid(message, hint=hint)
