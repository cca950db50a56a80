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
    from repot.chaos import campaign, report
    from repot.chaos.demo import ADVICE, INCIDENT, Evidence, cases
    from repot.cli import show

    report.require_writable(html)
    begun = monotonic()
    click.echo(INCIDENT)
    results = []
    for heading, broker in (("Redis is the broker", "redis"), ("The flip: RabbitMQ is the broker", "amqp")):
        _heading(heading)
        acts = cases(broker)
        with show.CampaignProgress(len(acts), variable="WORKER_BROKER_URL", quiet_steps=True) as progress:
            found = campaign.run(acts, jobs=len(acts), app="repot.worker.app", progress=progress)
        show.results(found)
        results += found
    evidence = Evidence(results)
    _heading("What moving to RabbitMQ fixes")
    _claims(evidence.fixed())
    _heading("What it does not fix")
    _claims(evidence.not_fixed())
    click.echo(f"\n{ADVICE}")
    report.write_html(results, html)
    click.echo(f"\nTimelines of every run: {html.resolve()}")
    click.echo(f"{monotonic() - begun:.0f} s; all private servers are stopped", err=True)
    campaign.require_expected(results)


def _heading(text: str) -> None:
    click.echo("\n" + click.style(text, bold=True))


def _claims(claims: Iterable[Claim]) -> None:
    for claim in claims:
        mark = click.style("+", fg="green") if claim.shown else click.style("? not shown by this run:", fg="red")
        click.echo(click.wrap_text(f"{mark} {claim.text}", width=100, subsequent_indent="  "))
