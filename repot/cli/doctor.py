"""`repot doctor`, and the same as `celery -A app repot doctor`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery import Celery

    from repot.doctor.policy import Policy


def _rule_names(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    from repot.doctor.policy import rule_names

    return rule_names(given)


@click.group(invoke_without_command=True)
@click.option(
    "--app",
    "-A",
    "apps",
    multiple=True,
    metavar="APP",
    help="The application, as for `celery -A`; several are compared. Default: WORKER_APP.",
)
@click.option("--live", is_flag=True, help="Ask the broker, too; it is only read.")
@click.option("--target", metavar="URL", help="Judge as if it already ran on this broker: what the move would break.")
@click.option(
    "--management-url",
    metavar="URL",
    help="RabbitMQ's management API. Default: WORKER_MANAGEMENT_URL, or port 15672 of the broker.",
)
@click.option(
    "--select",
    multiple=True,
    callback=_rule_names,
    metavar="IDS",
    help="Only these rules: RPT101,RPT2 (RPT2: all that begin so).",
)
@click.option("--ignore", multiple=True, callback=_rule_names, metavar="IDS", help="Not these rules.")
@click.option(
    "--fail-on", type=click.Choice(["error", "warning"]), help="What ends with exit code 4.  [default: error]"
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
    "--verbose", "-v", is_flag=True, help="Every task of a finding, what was waived, and what could not be judged."
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
    **switches: bool,
) -> None:
    """Find what will run twice, get lost or stop, before it does.

    Reads an application's configuration and tasks and, with --live, what its broker
    says. Exit code 4: something at least as bad as --fail-on was found. What is known
    and accepted is waived in pyproject.toml or beside a task (docs/doctor.md).
    """
    if context.invoked_subcommand:
        return
    from repot.doctor.catalogue import all_rules, chosen
    from repot.doctor.examine import examine, require_none
    from repot.doctor.policy import read_policy
    from repot.doctor.reports import FORMATS, text

    policy = read_policy(Path.cwd())
    rules = all_rules()
    in_use = chosen(rules, select or policy.select, ignore or policy.ignore)
    facts = _gather(context, apps, policy, target=target, live=switches["live"], management_url=management_url or "")
    reports = [examine(one, in_use, policy, rules) for one in facts]
    if form == "text":
        click.echo(text.render(reports, verbose=switches["verbose"]))
    else:
        found = FORMATS[form](reports)
        click.echo(found, nl=bool(found))
        click.echo(text.not_judged(reports), err=True)
    require_none(reports, fail_on or policy.fail_on)


@doctor.command()
@click.argument("rule")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def explain(rule: str, *, as_json: bool) -> None:
    """Say why a rule matters, and what to write instead."""
    from repot.doctor.catalogue import rule_named
    from repot.doctor.reports import data, text

    found = rule_named(rule)
    click.echo(json.dumps(data.rule(found), indent=2) if as_json else text.explain(found))


@doctor.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def rules(*, as_json: bool) -> None:
    """List every rule."""
    from repot.doctor.catalogue import all_rules
    from repot.doctor.reports import data, text

    found = all_rules().values()
    click.echo(json.dumps([data.rule(one) for one in found], indent=2) if as_json else text.catalogue(found))


def _gather(context: click.Context, apps: Sequence[str], policy: Policy, **wanted: Any) -> list[Any]:  # noqa: ANN401
    """Facts of each application; mounted under `celery -A`, of the one that is loaded there."""
    from repot.config import app_name
    from repot.doctor.gather import Request, compare, gather, gather_from

    mounted = _mounted(context)
    if mounted is not None and not apps:
        given = context.find_root().params.get("app")
        name = given if isinstance(given, str) else str(getattr(mounted, "main", "") or "the application")
        return [gather_from(mounted, Request(name, **wanted), policy)]
    return compare([gather(Request(name, **wanted), policy) for name in apps or [app_name()]])


def _mounted(context: click.Context) -> Celery | None:
    return getattr(context.find_root().obj, "app", None)
