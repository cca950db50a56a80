"""`repot chaos`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from repot.chaos.scenarios import SCENARIOS

_DEDUPLICATION = {"off": (False,), "on": (True,), "both": (False, True)}


@click.group()
def chaos() -> None:
    """Show what each broker does to a task when something fails."""


@chaos.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_(*, as_json: bool) -> None:
    """List the scenarios and what is expected of each broker."""
    from repot.chaos.report import scenarios_as_json
    from repot.cli import show

    if as_json:
        click.echo(json.dumps(scenarios_as_json(), indent=2))
    else:
        show.scenarios(SCENARIOS.values())


@chaos.command()
@click.argument("names", nargs=-1, required=True, type=click.Choice([*SCENARIOS, "all"]), metavar="SCENARIO...")
@click.option("--broker", type=click.Choice(["redis", "amqp", "both"]), default="both", show_default=True)
@click.option(
    "--dedup",
    type=click.Choice(list(_DEDUPLICATION)),
    default="both",
    show_default=True,
    help="Celery's own deduplication of successes.",
)
@click.option("--repeat", type=click.IntRange(1, 200), default=1, show_default=True, help="Runs of each case.")
@click.option("--jobs", type=click.IntRange(1, 16), default=4, show_default=True, help="Runs at the same time.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a page with timelines here.")
def run(
    names: tuple[str, ...], broker: str, dedup: str, repeat: int, jobs: int, *, as_json: bool, html: Path | None
) -> None:
    """Run scenarios on private brokers, and judge what became of each task.

    SCENARIO is one or more of those `repot chaos list` shows, or `all`. Two real
    workers, a real Toxiproxy; no broker of yours is touched. Exit code 4: some
    verdict is not the expected one.
    """
    from repot.chaos import campaign, report
    from repot.cli import show
    from repot.config import load
    from repot.worker.apps import load_configured_app

    if html:
        report.require_writable(html)
    app = load().app
    load_configured_app(app)
    chosen = SCENARIOS if "all" in names else dict.fromkeys(names)
    brokers = ("redis", "amqp") if broker == "both" else (broker,)
    cases = campaign.plan((SCENARIOS[name] for name in chosen), brokers, _DEDUPLICATION[dedup], repeat)
    with show.CampaignProgress(len(cases)) as progress:
        results = campaign.run(cases, jobs=jobs, app=app, progress=progress)
    if as_json:
        click.echo(json.dumps(report.as_json(results), indent=2))
    else:
        show.results(results)
        if repeat > 1:
            show.summary(campaign.summarize(results))
        click.echo(report.SCALE, err=True)
    if html:
        report.write_html(results, html)
        click.echo(f"report: {html}", err=True)
    campaign.require_expected(results)
