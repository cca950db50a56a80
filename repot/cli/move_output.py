"""Print accounts of moves."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from repot.cli.output import echo, echo_json, echo_line
from repot.sanitize import readable

if TYPE_CHECKING:
    from repot.migrate.verify import QueueCheck


def print_status(shown: dict[str, Any]) -> None:
    """Print what is known about a move, one line a field."""
    for name, value in shown.items():
        if isinstance(value, list):
            for one in value:
                echo(f"{name + ':':<16} {readable(json.dumps(one))}")
        elif isinstance(value, dict):
            counts = ", ".join(f"{what} {count}" for what, count in value.items())
            echo(f"{name + ':':<16} {counts}")
        elif value is not None:
            echo(f"{name + ':':<16} {readable(str(value))}")


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
        echo_json(rows)
        return
    for one in rows:
        echo(
            f"{readable(str(one['to']))} -> {readable(str(one['queue']))}: {one['in_target']} of {one['delivered']} "
            f"delivered would go back; {one['given_back']} were given back before, and {one['gone']} are not in the "
            "queue any more: consumed, delayed, or in the hands of workers"
        )


def _verdict(checks: list[QueueCheck]) -> str:
    """Return the sentence that says whether the account closes."""
    count = sum(len(one.problems) for one in checks)
    if count:
        return f"the account does not close: {count} {'problem' if count == 1 else 'problems'}"
    open_, gone = (sum(found) for found in zip(*((one.account.open, one.gone) for one in checks), strict=True))
    if open_:
        return f"the account closes, and {open_} messages are on their way: the move runs, or has to be resumed"
    if gone > 0:
        return f"the account closes; {gone} delivered messages are not in the target any more: consumed, or lost"
    return "the account closes: each message that left the source is in the target, or quarantined"


def _check_line(check: QueueCheck) -> str:
    account, back = check.account, check.given_back
    counts = {
        "delivered": account.delivered,
        "quarantined": account.quarantined,
        "still reserved": account.open,
        "given back": back.delivered,
        "in the target": check.present,
        "marked copies": check.copies - check.unmarked_copies,
        "unmarked copies": check.unmarked_copies,
        "gone": max(0, check.gone),
    }
    always = ("delivered", "in the target")
    found = ", ".join(f"{count} {name}" for name, count in counts.items() if count or name in always)
    return f"{check.queue} -> {check.to}: {found}" + "".join(f"; {one}" for one in check.problems)


def print_checks(checks: list[QueueCheck], *, as_json: bool, is_verbose: bool) -> None:
    """Print whether the account closes, and a line for each queue; all that was found as JSON, or if asked for.

    Raises:
        AccountOpen: an account does not close.
    """
    from repot.errors import AccountOpen

    shown = [asdict(one) for one in checks]
    if as_json:
        echo_json(shown)
    else:
        echo(_verdict(checks))
        for check, fields in zip(checks, shown, strict=True):
            echo_line(_check_line(check))
            if is_verbose:
                print_status(fields)
    problems = [f"{one.queue}: {problem}" for one in checks for problem in one.problems]
    if problems:
        message = f"the account does not close: {problems[0]}"
        raise AccountOpen(message, hint="`repot move status` shows the counts; `--json` of this command all problems.")
