"""Print dead letters as text; any program may have written them, so control characters are escaped."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from repot.cli.columns import columns
from repot.cli.output import echo, echo_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from repot.deadletter.query import DlqHandle


def table(rows: Sequence[tuple[str, ...]], heads: tuple[str, ...]) -> None:
    """Print one line per row; line breaks in cells are escaped."""
    for number, line in enumerate(columns(rows, heads)):
        echo(line, bold=not number)


def print_fields(found: dict[str, Any]) -> None:
    """Print one line per field; the traceback comes last, with its line breaks."""
    traceback = found.pop("traceback")
    width = max(map(len, found))
    for name, value in found.items():
        text = value if isinstance(value, str) else json.dumps(value)
        if value not in (None, "", {}):
            echo_line(f"{name:{width}}  {text}")
    if traceback:
        echo(f"\n{traceback.rstrip()}")
    echo()


def note_missing(dlqs: Iterable[DlqHandle]) -> None:
    """Print which queues do not exist: a wrong name must not look like an empty queue."""
    for queue in dlqs:
        echo_line(f"note: there is no queue {queue.name!r} on {queue.address}; is the name right?", err=True)


def oldest(ages: list[float | None]) -> float | None:
    """Return the highest known age; None if no age is known."""
    known = [age for age in ages if age is not None]
    return max(known, default=None)


def age(seconds: Any) -> str:  # noqa: ANN401
    """Return an age as text; "?" if it is unknown."""
    from repot.deadletter.presentation import duration

    return "?" if seconds is None else duration(seconds)
