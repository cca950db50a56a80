"""`repot chaos`: run scenarios and show their reports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from repot.cli.chaos_load import load, profile_names, sample, suggested
from repot.cli.durations import seconds
from repot.cli.output import echo, echo_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from repot.chaos.report.result import Campaign

_GUARDS = {"off": (False,), "on": (True,), "both": (False, True)}
_JOBS = 10

_file = click.Path(dir_okay=False, path_type=Path)


@suggested
def _scenario_names(typed: str) -> Iterable[str]:
    from repot.chaos.instruments.failpoints import Phase
    from repot.chaos.scenarios.catalogue import ALL, SCENARIOS, SMOKE
    from repot.chaos.scenarios.scenario import AT

    base, at, _ = typed.partition(AT)
    movable = {ALL, SMOKE, *(one.name for one in SCENARIOS.values() if one.has_other_phases)}
    moved = [f"{base}{AT}{phase}" for phase in Phase] if at and base in movable else []
    return (*SCENARIOS, ALL, SMOKE, *moved)


def _reports(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for reports."""
    for option in (
        click.option("--markdown", type=_file, help="Write the matrix and conclusions to this file, as Markdown."),
        click.option("--html", type=_file, help="Write an HTML page to this file: the matrix and timelines."),
        click.option("--junit", type=_file, help="Write results for a CI server to this file, as JUnit XML."),
        click.option(
            "--sarif",
            type=_file,
            help="Write what went wrong to this file, each at the line of your task's "
            "function, as SARIF for code scanning.",
        ),
        click.option(
            "--json", "as_json", is_flag=True, help="Print everything as JSON, which `repot chaos report` reads."
        ),
    ):
        command = option(command)
    return command


@click.group()
def chaos() -> None:
    """Run tasks under faults and judge them: lost, duplicated, or completed once.

    Private brokers on this machine are started for it and removed afterwards. Times
    are scaled: the minutes of an incident take seconds.
    """


@chaos.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(*, as_json: bool) -> None:
    """List scenarios and profiles."""
    from repot.chaos.scenarios.catalogue import SCENARIOS
    from repot.chaos.scenarios.profiles import PROFILES
    from repot.cli import tables

    if as_json:
        scenarios = [
            {"name": one.name, "title": one.title, "lesson": one.lesson, "smoke": one.smoke}
            for one in SCENARIOS.values()
        ]
        profiles = [{"name": one.name, "title": one.title, "broker": one.kind.scheme} for one in PROFILES.values()]
        echo_json({"scenarios": scenarios, "profiles": profiles})
    else:
        tables.scenarios(SCENARIOS.values())
        tables.profiles(PROFILES.values())


@chaos.command()
@click.argument("name", metavar="SCENARIO", shell_complete=_scenario_names)
def explain(name: str) -> None:
    """Describe a scenario and the verdict expected under each profile."""
    from repot.chaos.runner.planning import scenario_called
    from repot.chaos.scenarios.expectations import table
    from repot.cli import tables

    scenario = scenario_called(name)
    echo(f"{scenario.title}.\n{scenario.lesson}\n")
    fault = scenario.fault.description if scenario.fault else "none"
    lasts = "until the task has ended" if scenario.lasts_s is None else f"for {scenario.lasts_s:g} s"
    echo(f"fault: {fault}" + (f", {lasts}" if scenario.fault else ""))
    echo(f"phase: {scenario.phase or 'none, the task is not stopped'}\n")
    tables.expectations(table(name))


@chaos.command()
@click.argument("names", nargs=-1, metavar="[SCENARIO...]", shell_complete=_scenario_names)
@click.option(
    "--profile", "profiles", multiple=True, metavar="NAME", shell_complete=profile_names,
    help="Settings to run under: a name from `repot chaos list` or --profiles, or `environment` for the current "
    "WORKER_* variables. May be repeated. With --app, redis-stock and amqp-stock are your application's own settings. "
    "[default: all]",
)  # fmt: skip
@click.option("--profiles", "profiles_file", type=_file, help="A TOML file with your own profiles.")
@click.option(
    "--guard",
    type=click.Choice(list(_GUARDS)),
    help="Run with repot's idempotency guard on, off, or both; changes nothing for an application that guards no "
    "task.  [default: both; on with --app]",
)
@click.option(
    "--app", "-A", "app_name", metavar="APP", help="Your Celery application, as for `celery -A`; requires --task."
)
@click.option("--task", "task_name", metavar="NAME", help="The name of your task under test.")
@click.option(
    "--args",
    "args_json",
    metavar="JSON",
    help="Its arguments: a JSON list, or an object by name.",
)
@click.option("--arguments", metavar="MODULE:NAME", help="A function that makes its arguments, called before each run "
    "of a cell: it returns a list, a dictionary of keyword arguments, or a tuple of both.")  # fmt: skip
@click.option("--probe", metavar="COMMAND", help="A command that prints the number of effects so far, or a JSON object "
    "of numbers by name. Cells then run one at a time. Without it, each run whose function returned counts as one "
    "effect.")  # fmt: skip
@click.option("--expect", metavar="JSON", help="How many effects a task is to have: a number, or by the names of the "
    "probe, as in '{\"payments\": 1, \"rows\": 3}'.  [default: one of each]")  # fmt: skip
@click.option("--reset", metavar="COMMAND", help="A command that removes what an earlier run left; it runs before each "
    "run of a cell. Cells then run one at a time.")  # fmt: skip
@click.option("--queues", default="", metavar="NAMES", help="The queues that your workers consume, as for "
    "`celery worker -Q`. [default: those that are declared, and those that tasks are routed to]")  # fmt: skip
@click.option("--pool", default="", metavar="NAME", help="The pool of your workers, as for `celery "
    "worker --pool`: prefork, threads, solo, gevent, eventlet. [default: your application's worker_pool]")  # fmt: skip
@click.option("--into", "into_s", callback=seconds, metavar="TIME", help="How long the task has run when the fault "
    "comes, in scenarios of the phase `running`. [default: its function begins]")  # fmt: skip
@click.option("--scale", type=click.FloatRange(min=1), metavar="N", help="Divide the times of your settings by N; 1 "
    "leaves them as they are. [default: so that an incident takes seconds, and a run that is shorter than your "
    "visibility timeout stays shorter]")  # fmt: skip
@click.option("--broker-url", "urls", multiple=True, metavar="URL", help="Use this broker instead of a private one. "
    "The broker itself is not harmed.")  # fmt: skip
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="A host that --broker-url may name though it is not on this machine.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed.")
@click.option("--same-ids", is_flag=True, help="Let the seed decide the task ids: a second run sends the same ids. "
    "By default they are new in each run.")  # fmt: skip
@click.option("--repeat", type=click.IntRange(1, 200), default=1, show_default=True, help="Runs of each cell.")
@click.option(
    "--jobs",
    type=click.IntRange(1, 32),
    default=_JOBS,
    show_default=True,
    help="Number of cells that run at the same time.",
)
@_reports
def run(  # noqa: PLR0913 - one for each option
    *,
    names: tuple[str, ...],
    profiles: tuple[str, ...],
    profiles_file: Path | None,
    guard: str | None,
    app_name: str | None,
    task_name: str | None,
    args_json: str | None,
    arguments: str | None,
    probe: str | None,
    queues: str,
    expect: str | None,
    reset: str | None,
    pool: str,
    into_s: float | None,
    scale: float | None,
    urls: tuple[str, ...],
    hosts: tuple[str, ...],
    seed: int,
    same_ids: bool,
    repeat: int,
    jobs: int,
    as_json: bool,
    junit: Path | None,
    sarif: Path | None,
    html: Path | None,
    markdown: Path | None,
) -> None:
    """Run scenarios and print the verdict on each cell.

    SCENARIO is a name from `repot chaos list`, `smoke`, or `all` (the default, about 20
    minutes on 2 cores). SCENARIO@PHASE injects the fault at another phase of the task,
    as in link-down@before-ack or all@received. Ctrl-C stops the run and prints the
    verdicts so far. Exit code 4: a verdict is not the expected one.
    """
    from repot.chaos.report import files
    from repot.chaos.runner import campaign, planning
    from repot.cli import tables

    for path in (junit, sarif, html, markdown):
        if path:
            files.require_writable(path)
    plan = planning.plan(
        names=names,
        profiles=profiles,
        own_profiles=profiles_file,
        guards=_GUARDS[guard] if guard else None,
        target=planning.target(
            planning.Options(
                app=app_name,
                task=task_name,
                args=args_json,
                arguments=arguments,
                probe=probe,
                expect=expect,
                reset=reset,
                queues=queues,
                pool=pool,
                scale=scale,
                same_ids=same_ids,
                into_s=into_s,
            )
        ),
        brokers=planning.external(urls, hosts),
        seed=seed,
        repeat=repeat,
    )
    with tables.CampaignProgress(len(plan.cases)) as progress:
        found = campaign.run(plan, jobs=1 if plan.target.runs_alone else jobs, progress=progress)
    _show(found, as_json=as_json, junit=junit, sarif=sarif, html=html, markdown=markdown)
    campaign.require_expected(found)


chaos.add_command(load)
chaos.add_command(sample)


@chaos.command("report")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_reports
def report_(file: Path, *, as_json: bool, **reports: Path | None) -> None:
    """Print or convert a report that `repot chaos run --json` wrote to FILE."""
    from repot.chaos.report import files

    _show(files.read(file), as_json=as_json, **reports)


def _show(campaign: Campaign, *, as_json: bool, **reports: Path | None) -> None:
    from repot.chaos.report import files
    from repot.cli import tables

    if as_json:
        click.echo(files.as_json(campaign))
    else:
        tables.results(campaign)
        tables.repetitions(campaign)
    for form, path in reports.items():
        if path:
            files.write(files.FORMS[form](campaign), path)
            echo(f"report: {path}", err=True)
