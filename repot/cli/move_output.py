"""Print accounts of moves."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from repot.cli.columns import print_fields, print_table
from repot.cli.output import echo, echo_json, echo_line
from repot.sanitize import readable

if TYPE_CHECKING:
    from repot.migrate.verify import QueueCheck


#: Counts that a table of them always has; others appear where one is not 0.
_ALWAYS = ("reserved", "delivered")
_WIDEST = 16


def print_status(shown: dict[str, Any]) -> None:
    """Print what is known about a move: a line a field, then a table of its queues and one of its audit."""
    queues, counted = shown["queues"], [name for name in shown["given_back"] if name in shown]
    _print_known(
        {name: value for name, value in shown.items() if name not in (*counted, "given_back", "queues", "audit")}
    )
    _print_counts([*queues, *([{"queue": "(all)", "to": "", **shown}] if len(queues) > 1 else [])], counted)
    if any(shown["given_back"].values()):
        _print_known({"given_back": shown["given_back"]})
    if shown["audit"]:
        echo()
        print_table([_audited(one) for one in shown["audit"]], ("when", "who", "what"))


def _print_counts(rows: list[dict[str, Any]], counted: list[str]) -> None:
    names = [name for name in counted if name in _ALWAYS or any(one[name] for one in rows)]
    heads = ("queue", "to", *(name.replace("_", " ") for name in names))
    echo()
    print_table([(one["queue"], one["to"], *(str(one[name]) for name in names)) for one in rows], heads)


def _audited(line: dict[str, Any]) -> tuple[str, ...]:
    return line["at"], f"{line['user']} on {line['host']}, process {line['pid']}", line["what"]


def _print_known(fields: dict[str, Any]) -> None:
    """Print a line for each field that is known; counts of a field are one line."""
    known = {name: value for name, value in fields.items() if value is not None and value != []}
    print_fields(((f"{name}:", _text(value)) for name, value in known.items()), _WIDEST)


def _text(value: Any) -> str:  # noqa: ANN401 - a field of any type
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{what} {count}" for what, count in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def print_revert(checks: list[QueueCheck], *, as_json: bool) -> None:
    """Print how much of each queue a revert would give back."""
    rows = [
        {
            "queue": row.queue,
            "to": row.to,
            "delivered": row.account.delivered,
            "given_back": row.given_back.delivered,
            "in_target": row.present + row.copies,
            "gone": row.gone,
        }
        for row in checks
    ]
    if as_json:
        echo_json(rows)
        return
    for row in rows:
        echo(
            f"{readable(str(row['to']))} -> {readable(str(row['queue']))}: {row['in_target']} of {row['delivered']} "
            f"delivered would go back; {row['given_back']} were given back before, and {row['gone']} are not in the "
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
        CheckFailed: an account does not close.
    """
    from repot.errors import CheckFailed

    shown = [asdict(one) for one in checks]
    if as_json:
        echo_json(shown)
    else:
        echo(_verdict(checks))
        for check, fields in zip(checks, shown, strict=True):
            echo_line(_check_line(check))
            if is_verbose:
                _print_known(fields)
    problems = [f"{one.queue}: {problem}" for one in checks for problem in one.problems]
    if problems:
        message = f"the account does not close: {problems[0]}"
        raise CheckFailed(message, hint="`repot move status` shows the counts; `--json` of this command all problems.")
