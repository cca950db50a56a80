"""`repot chaos`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from repot.chaos.result import Campaign

_GUARDS = {"off": (False,), "on": (True,), "both": (False, True)}
_JOBS = 10

_file = click.Path(dir_okay=False, path_type=Path)


def _scenario_names(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    from repot.chaos.scenarios import ALL, AT, SCENARIOS, SMOKE
    from repot.worker.gates import Phase

    base, at, _ = typed.partition(AT)
    movable = {ALL, SMOKE, *(one.name for one in SCENARIOS.values() if one.has_other_phases)}
    moved = [f"{base}{AT}{phase}" for phase in Phase] if at and base in movable else []
    return [name for name in (*SCENARIOS, ALL, SMOKE, *moved) if name.startswith(typed)]


def _profile_names(_: click.Context, __: click.Parameter, typed: str) -> list[str]:
    from repot.chaos.profiles import ENVIRONMENT, PROFILES

    return [name for name in (*PROFILES, ENVIRONMENT) if name.startswith(typed)]


def _reports(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say in which form a campaign is shown."""
    for option in (
        click.option("--markdown", type=_file, help="Write the matrix and what to conclude here, as Markdown."),
        click.option("--html", type=_file, help="Write one page with the matrix and a timeline of each cell here."),
        click.option("--junit", type=_file, help="Write results for a CI server here, as JUnit's XML."),
        click.option(
            "--json", "as_json", is_flag=True, help="Print everything as JSON; `repot chaos report` reads it."
        ),
    ):
        command = option(command)
    return command


@click.group()
def chaos() -> None:
    """Show what becomes of tasks when something fails: a matrix of faults and settings, with a verdict each.

    Everything runs on private brokers on this machine, and is gone afterwards. Seconds
    stand for the minutes of an incident.
    """


@chaos.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_(*, as_json: bool) -> None:
    """List the scenarios and the profiles."""
    from repot.chaos.profiles import PROFILES
    from repot.chaos.scenarios import SCENARIOS
    from repot.cli import show

    if as_json:
        scenarios = [
            {"name": one.name, "title": one.title, "lesson": one.lesson, "smoke": one.smoke}
            for one in SCENARIOS.values()
        ]
        profiles = [{"name": one.name, "title": one.title, "broker": one.broker} for one in PROFILES.values()]
        click.echo(json.dumps({"scenarios": scenarios, "profiles": profiles}, indent=2))
    else:
        show.scenarios(SCENARIOS.values())
        show.profiles(PROFILES.values())


@chaos.command()
@click.argument("name", metavar="SCENARIO", shell_complete=_scenario_names)
def explain(name: str) -> None:
    """Say what a scenario does, what it teaches, and what is expected of each profile."""
    from repot.chaos.expectations import table
    from repot.chaos.planning import scenario_called
    from repot.cli import show

    scenario = scenario_called(name)
    click.echo(f"{scenario.title}.\n{scenario.lesson}\n")
    fault = scenario.fault.what if scenario.fault else "none"
    lasts = "until nothing is left of the task" if scenario.lasts_s is None else f"for {scenario.lasts_s:g} s"
    click.echo(f"fault: {fault}" + (f", {lasts}" if scenario.fault else ""))
    click.echo(f"phase: {scenario.phase or 'not held'}\n")
    show.expectations(table(name))


@chaos.command()
@click.argument("names", nargs=-1, metavar="[SCENARIO...]", shell_complete=_scenario_names)
@click.option(
    "--profile", "profile_names", multiple=True, metavar="NAME", shell_complete=_profile_names,
    help="Settings to run under: one of `repot chaos list`, one of --profiles, or `environment` for what WORKER_* say "
    "now. May be repeated; all by default.",
)  # fmt: skip
@click.option("--profiles", "profiles_file", type=_file, help="A TOML file with profiles of your own.")
@click.option(
    "--guard", type=click.Choice(list(_GUARDS)), help="repot's idempotency guard.  [default: both; on for --app]"
)
@click.option("--app", "app_name", metavar="APP", help="Your Celery application, as for `celery -A`; needs --task.")
@click.option("--task", "task_name", metavar="NAME", help="The name of the task of yours that is struck.")
@click.option("--args", "args_json", metavar="JSON", help="Its arguments: a JSON list or, by name, an object.")
@click.option("--probe", metavar="COMMAND", help="Prints how many effects there are so far; then cells run one by one. "
    "Without it an effect is a run whose body returned.")  # fmt: skip
@click.option("--broker-url", "urls", multiple=True, metavar="URL", help="Use this broker instead of a private one. "
    "Nothing is done to it but what its clients do.")  # fmt: skip
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="HOST", help="A host beyond loopback that --broker-url may name."
)
@click.option("--seed", type=int, default=0, show_default=True, help="What is left to chance follows it.")
@click.option("--repeat", type=click.IntRange(1, 200), default=1, show_default=True, help="Runs of each cell.")
@click.option("--jobs", type=click.IntRange(1, 32), default=_JOBS, show_default=True, help="Cells at the same time.")
@_reports
def run(  # noqa: PLR0913 - one for each option
    *,
    names: tuple[str, ...],
    profile_names: tuple[str, ...],
    profiles_file: Path | None,
    guard: str | None,
    app_name: str | None,
    task_name: str | None,
    args_json: str | None,
    probe: str | None,
    urls: tuple[str, ...],
    hosts: tuple[str, ...],
    seed: int,
    repeat: int,
    jobs: int,
    as_json: bool,
    junit: Path | None,
    html: Path | None,
    markdown: Path | None,
) -> None:
    """Run scenarios, and judge what became of each task.

    SCENARIO is one or more of those `repot chaos list` shows, `smoke`, or `all`, which
    is the default and takes some 20 minutes on 2 cores. SCENARIO@PHASE lets the fault
    strike at another phase of the task, as in link-down@before-ack or all@received.
    Ctrl-C ends all that was started, and shows what there is. Exit code 4: some verdict is
    not as expected.
    """
    from repot.chaos import campaign, planning, report
    from repot.cli import show

    for path in (junit, html, markdown):
        if path:
            report.require_writable(path)
    plan = planning.plan(
        names=names,
        profiles=profile_names,
        own_profiles=profiles_file,
        guards=_GUARDS[guard] if guard else None,
        target=planning.target(app_name, task_name, args_json, probe),
        brokers=planning.existing(urls, hosts),
        seed=seed,
        repeat=repeat,
    )
    with show.CampaignProgress(len(plan.cases)) as progress:
        # a probe counts all effects, whosever
        found = campaign.run(plan, jobs=1 if plan.target.probe else jobs, progress=progress)
    _show(found, as_json=as_json, junit=junit, html=html, markdown=markdown)
    campaign.require_expected(found)


@chaos.command("report")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_reports
def report_(file: Path, *, as_json: bool, junit: Path | None, html: Path | None, markdown: Path | None) -> None:
    """Show again what `repot chaos run --json` printed into FILE."""
    from repot.chaos import report

    _show(report.read(file), as_json=as_json, junit=junit, html=html, markdown=markdown)


def _show(found: Campaign, *, as_json: bool, junit: Path | None, html: Path | None, markdown: Path | None) -> None:
    from repot.chaos import report
    from repot.cli import show

    if as_json:
        click.echo(report.as_json(found))
    else:
        show.results(found)
        show.repetitions(found)
    for path, write in ((junit, report.as_junit), (html, report.as_html), (markdown, report.as_markdown)):
        if path:
            report.write(write(found), path)
            click.echo(f"report: {path}", err=True)
