"""Print accounts of moves."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from repot.sanitize import sanitize

if TYPE_CHECKING:
    from repot.migrate.verify import QueueCheck


def print_status(shown: dict[str, Any]) -> None:
    """Print what is known about a move, one line a field."""
    for name, value in shown.items():
        if isinstance(value, list):
            for one in value:
                click.echo(f"{name + ':':<16} {sanitize(json.dumps(one))}")
        elif isinstance(value, dict):
            counts = ", ".join(f"{what} {count}" for what, count in value.items())
            click.echo(f"{name + ':':<16} {counts}")
        elif value is not None:
            click.echo(f"{name + ':':<16} {sanitize(str(value))}")


def print_revert(checks: list[QueueCheck], *, as_json: bool) -> None:
    """Print how much of each queue a revert would give back."""
    rows = [
        {
            "queue": one.queue,
            "to": one.to,
            "delivered": one.account.delivered,
            "given_back": one.given_back.delivered,
            "in_target": one.present + one.copies,
            "gone": one.gone,
        }
        for one in checks
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    for one in rows:
        click.echo(
            f"{sanitize(str(one['to']))} -> {sanitize(str(one['queue']))}: {one['in_target']} of {one['delivered']} "
            f"delivered would go back; {one['given_back']} were given back before, and {one['gone']} are not in the "
            "queue any more: consumed, delayed, or in the hands of workers"
        )


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
