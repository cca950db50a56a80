"""Print plans and accounts of moves."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from repot.cli.columns import columns
from repot.sanitize import sanitize

if TYPE_CHECKING:
    from repot.config import WorkerSettings
    from repot.migrate.move import Order
    from repot.migrate.plan import QueuePlan
    from repot.migrate.verify import QueueCheck

_HEADS = ("task", "count", "largest", "compressed", "earliest eta", "latest eta", "priorities", "quarantined")


def show_plan(order: Order, settings: WorkerSettings, sample: int, *, as_json: bool) -> None:
    """Print what a move would do.

    Raises:
        MoveRefused: it would lose or strand something.
    """
    from repot.errors import MoveRefused
    from repot.migrate.control import Until
    from repot.migrate.move import open_move
    from repot.migrate.plan import plan_of, problems_of

    with open_move(order, settings) as found:
        plans = plan_of(found, sample, follows=order.limits.until is Until.FOLLOW)
        brokers = [f"{one.product} {one.version}" for one in (found.source, found.target)]
    problems = problems_of(plans)
    if as_json:
        shown = {
            "source": order.addresses.source.url.masked(),
            "target": order.addresses.target.url.masked(),
            "brokers": brokers,
            "queues": [asdict(one) for one in plans],
            "problems": problems,
        }
        click.echo(json.dumps(shown, indent=2, default=str))
    else:
        click.echo(f"from {brokers[0]} ({order.addresses.source.url}) to {brokers[1]} ({order.addresses.target.url})")
        for one in plans:
            _print_queue(one)
    if problems:
        message = f"the move would lose or strand something: {problems[0]}"
        raise MoveRefused(message, hint=f"{len(problems)} problems; the plan lists them all.")


def _print_queue(plan: QueuePlan) -> None:
    click.echo(f"\n{sanitize(plan.queue)} -> {sanitize(plan.to)}")
    click.echo(f"  source: {_text(plan.source)}")
    click.echo(f"  target: {_text(plan.target)}")
    click.echo(f"  looked at: {plan.looked_at}")
    rows = [
        (
            task,
            str(one.count),
            str(one.largest_bytes),
            str(one.compressed),
            one.earliest_eta or "",
            one.latest_eta or "",
            ", ".join(f"{name} ({count})" for name, count in one.priorities.items()),
            ", ".join(f"{name} ({count})" for name, count in one.quarantined.items()),
        )
        for task, one in plan.tasks.items()
    ]
    for line in columns(rows, _HEADS) if rows else ():
        click.echo(f"  {line}")
    for kind, texts in (("note", plan.notes), ("problem", plan.problems)):
        for text in texts:
            click.echo(f"  {kind}: {sanitize(text)}")


def _text(found: dict[str, Any] | str) -> str:
    return found if isinstance(found, str) else ", ".join(f"{name} {count}" for name, count in found.items())


def print_status(shown: dict[str, Any]) -> None:
    """Print what is known about a move, one line a field."""
    for name, value in shown.items():
        if isinstance(value, list):
            for one in value:
                click.echo(f"{name + ':':<16} {sanitize(json.dumps(one))}")
        elif value is not None:
            click.echo(f"{name + ':':<16} {sanitize(str(value))}")


def print_checks(checks: list[QueueCheck], *, as_json: bool) -> None:
    """Print what was found about each queue.

    Raises:
        AccountOpen: an account does not close.
    """
    from repot.errors import AccountOpen

    shown = [asdict(one) for one in checks]
    if as_json:
        click.echo(json.dumps(shown, indent=2))
    else:
        for one in shown:
            print_status(one)
    problems = [f"{one.queue}: {problem}" for one in checks for problem in one.problems]
    if problems:
        message = f"the account does not close: {problems[0]}"
        raise AccountOpen(message, hint="`repot move status` shows the counts; `--json` of this command all problems.")
