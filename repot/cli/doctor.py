"""`repot doctor`, and the same as `celery -A app repot doctor`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from repot.config.masking import masked
from repot.doctor.rule import Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery import Celery

    from repot.doctor.examine import Judged, Report
    from repot.doctor.policy import Policy

#: Subjects of a finding that are shown before "and more".
_SHOWN = 5
_COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}


def _words(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word.strip().upper() for one in given for word in one.split(",") if word.strip())


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
    callback=_words,
    metavar="IDS",
    help="Only these rules: RPT101,RPT2 (RPT2: all that begin so).",
)
@click.option("--ignore", multiple=True, callback=_words, metavar="IDS", help="Not these rules.")
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
    from repot.doctor.reports import FORMATS

    policy = read_policy(Path.cwd())
    rules = all_rules()
    in_use = chosen(rules, select or policy.select, ignore or policy.ignore)
    facts = _gather(
        context, apps, policy, target=target or "", live=switches["live"], management_url=management_url or ""
    )
    reports = [examine(one, in_use, policy, rules) for one in facts]
    if form == "text":
        _show(reports, verbose=switches["verbose"])
    else:
        text = FORMATS[form](reports)
        click.echo(text, nl=bool(text))
        _tell_not_judged(reports)
    require_none(reports, fail_on or policy.fail_on)


@doctor.command()
@click.argument("rule")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def explain(rule: str, *, as_json: bool) -> None:
    """Say why a rule matters, and what to write instead."""
    from repot.doctor.catalogue import rule_named
    from repot.doctor.reports import data

    found = rule_named(rule)
    if as_json:
        click.echo(json.dumps(data.rule(found), indent=2))
        return
    click.echo(click.style(f"{found.id}  {found.title}", bold=True))
    brokers = " and ".join(kind.value for kind in found.brokers)
    versions = f", {found.versions}" if found.versions else ""
    click.echo(f"{found.severity.label}; concerns {brokers}{versions}" + ("; needs --live" if found.live else ""))
    click.echo("\n" + click.wrap_text(found.reason, width=100))
    click.echo("\nWrite:\n\n" + "\n".join(f"    {line}" for line in found.fix.splitlines()))
    click.echo("\nEvidence:\n" + "\n".join(f"  - {one}" for one in found.evidence))


@doctor.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def rules(*, as_json: bool) -> None:
    """List every rule."""
    from repot.doctor.catalogue import all_rules
    from repot.doctor.reports import data

    found = all_rules().values()
    if as_json:
        click.echo(json.dumps([data.rule(one) for one in found], indent=2))
        return
    for one in found:
        brokers = "both" if len(one.brokers) > 1 else one.brokers[0].value
        live = "live" if one.live else ""
        click.echo(f"{one.id}  {one.severity.label:8} {brokers:9} {live:5} {one.title}")


def _gather(context: click.Context, apps: Sequence[str], policy: Policy, **wanted: Any) -> list[Any]:  # noqa: ANN401
    """Facts of each application; mounted under `celery -A`, of the one that is loaded there."""
    from repot.config import app_name
    from repot.doctor.gather import Request, compare, gather, gather_from

    mounted = _mounted(context)
    if mounted is not None and not apps:
        name = str(getattr(mounted, "main", "") or "the application")
        return [gather_from(mounted, Request(name, **wanted), policy)]
    return compare([gather(Request(name, **wanted), policy) for name in apps or [app_name()]])


def _mounted(context: click.Context) -> Celery | None:
    return getattr(context.find_root().obj, "app", None)


def _show(reports: Sequence[Report], *, verbose: bool) -> None:
    """The findings for people: grouped by rule, the worst first."""
    for report in reports:
        facts = report.facts
        version = f" {facts.live.version}" if facts.live else ""
        moved = f", as if moved from {facts.moved_from.value}" if facts.moved_from else ""
        server = ";".join(str(server) for server in facts.servers)
        click.echo(click.style(f"{facts.app} on {facts.kind.value}{version} ({server}){moved}", bold=True))
        for name in dict.fromkeys(one.rule.id for one in report.findings):
            _show_rule([one for one in report.findings if one.rule.id == name], verbose=verbose)
        if verbose:
            for one in report.waived:
                reason = one.waiver.reason if one.waiver else ""
                click.echo(f"waived  {one.rule.id}  {one.finding.task or one.finding.setting}: {reason}")
        click.echo(_summary(report))
    _tell_not_judged(reports, each=verbose, err=False)


def _show_rule(found: Sequence[Judged], *, verbose: bool) -> None:
    rule = found[0].rule
    label = click.style(f"{rule.severity.label:7}", fg=_COLOURS[rule.severity.label], bold=True)
    click.echo(f"\n{label} {click.style(rule.id, bold=True)}  {rule.title}")
    shown = found if verbose else found[:_SHOWN]
    for one in shown:
        finding = one.finding
        subject = finding.task or finding.setting
        where = f"  ({finding.place})" if finding.place else ""
        click.echo(f"        {f'{subject}: ' if subject else ''}{masked(finding.message)}{where}")
    if len(found) > len(shown):
        click.echo(f"        and {len(found) - len(shown)} more; --verbose lists them")
    click.echo(click.wrap_text(rule.reason, 100, initial_indent="        why: ", subsequent_indent="             "))
    click.echo("        write:")
    for line in (found[0].finding.fix or rule.fix).splitlines():
        click.echo(click.style(f"          {line}", fg="green"))


def _summary(report: Report) -> str:
    found = ", ".join(
        f"{count} {severity.label}{'s' if count > 1 and severity.label != 'info' else ''}"
        for severity in sorted(Severity, reverse=True)
        if (count := report.count(severity))
    )
    waived = f", {len(report.waived)} waived" if report.waived else ""
    concerned = [rule for rule in report.rules.values() if report.facts.kind in rule.brokers]
    judged = len(concerned) - len(report.not_judged)
    return f"\n{found or 'nothing wrong'}{waived}; {judged} rules, {len(report.facts.tasks)} tasks"


def _tell_not_judged(reports: Sequence[Report], *, each: bool = False, err: bool = True) -> None:
    """Which rules had no say, and what would give them one: unknown is not fine."""
    missing: dict[str, dict[str, None]] = {}
    for report in reports:
        for one in report.not_judged:
            missing.setdefault(one.remedy or one.reason, {})[one.rule.id] = None
            if each:
                click.echo(f"not judged  {one.rule.id}  {one.rule.title}: {one.reason}", err=err)
    for remedy, names in missing.items():
        few = ", ".join([*names][:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        rules = "rules" if len(names) > 1 else "rule"
        click.echo(f"not judged: {len(names)} {rules} ({few}). {remedy}", err=err)
