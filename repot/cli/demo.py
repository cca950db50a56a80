"""`repot demo`: the duplicated task on both brokers."""

from __future__ import annotations

import json
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import click

from repot.cli.output import echo, echo_json, prose_width

if TYPE_CHECKING:
    from collections.abc import Iterable

    from repot.chaos.report.explanation import Statement
    from repot.chaos.report.result import Campaign


@click.command()
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("repot-demo.html"),
    show_default=True,
    help="Write the page with timelines to this file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print statements and results as JSON; messages go to stderr.")
def demo(html: Path, *, as_json: bool) -> None:
    """Show on both brokers how a task is run twice, what prevents it, and how waiting tasks move.

    It takes about two minutes.

    Private servers on this machine are started for it and removed afterwards. Exit code
    4: a verdict is not the expected one.
    """
    from dataclasses import asdict

    from repot.chaos.demo import ADVICE, HEADINGS, INCIDENT, MOVED, Evidence, explanation
    from repot.chaos.moved_backlog import move_a_backlog, require_proved
    from repot.chaos.report import files
    from repot.chaos.runner import campaign

    files.require_writable(html)
    begun = monotonic()
    echo(INCIDENT, err=as_json)
    found = _combined(*(_run(half, show=not as_json) for half in range(len(HEADINGS))))
    statements = Evidence(found.results).statements()
    _heading(MOVED, err=as_json)
    statements[MOVED] = move_a_backlog(lambda text: echo(text, err=as_json))
    files.write(files.as_html(found, explanation(statements)), html)
    if as_json:
        listed = {heading: [asdict(one) for one in ones] for heading, ones in statements.items()}
        echo_json({"statements": listed} | json.loads(files.as_json(found)), indent=1)
    else:
        _print(statements)
        echo(f"\n{ADVICE}\n\nTimelines of every run: {html.resolve()}")
    echo(f"{monotonic() - begun:.0f} s; all private servers are stopped", err=True)
    campaign.require_expected(found)
    require_proved(statements[MOVED])


def _run(half: int, *, show: bool) -> Campaign:
    from repot.chaos.demo import HEADINGS, cases
    from repot.chaos.runner import campaign
    from repot.cli import tables

    _heading(HEADINGS[half], err=not show)
    plan = campaign.Plan(cases(half))
    with tables.CampaignProgress(len(plan.cases), addresses=True, quiet_steps=True) as progress:
        found = campaign.run(plan, jobs=len(plan.cases), progress=progress)
    # the statements need every result
    campaign.require_measured(found)
    if show:
        tables.results(found)
    return found


def _combined(first: Campaign, second: Campaign) -> Campaign:
    from dataclasses import replace

    return replace(
        second,
        created=first.created,
        versions=first.versions | second.versions,
        profiles=first.profiles + second.profiles,
        results=first.results + second.results,
        took_s=first.took_s + second.took_s,
    )


def _heading(text: str, *, err: bool = False) -> None:
    echo(f"\n{text}", bold=True, err=err)


def _print(statements: dict[str, list[Statement]]) -> None:
    for heading, ones in statements.items():
        _heading(heading)
        _paragraphs(ones)


def _paragraphs(statements: Iterable[Statement]) -> None:
    for statement in statements:
        mark = click.style("+", fg="green") if statement.proved else click.style("? not proved by this run:", fg="red")
        click.echo(click.wrap_text(f"{mark} {statement.text}", width=prose_width(), subsequent_indent="  "))
