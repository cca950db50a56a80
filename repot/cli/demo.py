"""`repot demo`."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable

    from repot.chaos.demo import Claim


@click.command()
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("repot-demo.html"),
    show_default=True,
    help="Where to write the page with timelines.",
)
def demo(html: Path) -> None:
    """Tell the story of the task that ran twice, on both brokers, in under two minutes.

    Everything runs on private servers on this machine and is gone afterwards.
    """
    from dataclasses import replace

    from repot.chaos import campaign, report
    from repot.chaos.demo import ADVICE, INCIDENT, Evidence, cases
    from repot.cli import show

    report.require_writable(html)
    begun = monotonic()
    click.echo(INCIDENT)
    parts = []
    for heading, broker in (("Redis is the broker", "redis"), ("The flip: RabbitMQ is the broker", "amqp")):
        _heading(heading)
        plan = campaign.Plan(cases(broker))
        with show.CampaignProgress(len(plan.cases), variable="WORKER_BROKER_URL", quiet_steps=True) as progress:
            found = campaign.run(plan, jobs=len(plan.cases), progress=progress)
        # a story with gaps is none
        campaign.require_measured(found)
        show.results(found)
        parts.append(found)
    first, second = parts
    whole = replace(
        second,
        versions=first.versions | second.versions,
        scenarios=first.scenarios,
        profiles=first.profiles + second.profiles,
        results=first.results + second.results,
        took_s=first.took_s + second.took_s,
    )
    evidence = Evidence(whole.results)
    for heading, claims in (
        ("What moving to RabbitMQ fixes", evidence.fixed()),
        ("What it does not fix", evidence.not_fixed()),
        ("What the guard does", evidence.guarded()),
    ):
        _heading(heading)
        _claims(claims)
    click.echo(f"\n{ADVICE}")
    report.write(report.as_html(whole), html)
    click.echo(f"\nTimelines of every run: {html.resolve()}")
    click.echo(f"{monotonic() - begun:.0f} s; all private servers are stopped", err=True)
    campaign.require_expected(whole)


def _heading(text: str) -> None:
    click.echo("\n" + click.style(text, bold=True))


def _claims(claims: Iterable[Claim]) -> None:
    for claim in claims:
        mark = click.style("+", fg="green") if claim.shown else click.style("? not shown by this run:", fg="red")
        click.echo(click.wrap_text(f"{mark} {claim.text}", width=100, subsequent_indent="  "))
