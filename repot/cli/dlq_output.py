"""Print dead letters as text; any program may have written them, so control characters are escaped."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from repot.cli.columns import print_fields
from repot.cli.output import echo, echo_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from repot.deadletter.query import DlqHandle


def print_dead_letter(dead_letter: dict[str, Any]) -> None:
    """Print one line per field; the traceback comes last, with its line breaks."""
    traceback = dead_letter.pop("traceback")
    known = {name: value for name, value in dead_letter.items() if value not in (None, "", {})}
    texts = ((name, value if isinstance(value, str) else json.dumps(value)) for name, value in known.items())
    print_fields(texts, max(map(len, dead_letter)) + 1)
    if traceback:
        echo(f"\n{traceback.rstrip()}", verbatim=True)
    echo()


def note_missing(dlqs: Iterable[DlqHandle]) -> None:
    """Print which queues do not exist: a wrong name must not look like an empty queue."""
    for queue in dlqs:
        echo_line(f"note: there is no queue {queue.name!r} on {queue.address}; is the name right?", err=True)


def note_none(dlqs: Iterable[DlqHandle], *, selected: bool = False) -> None:
    """Print that no dead letters were found, and in which queues of which broker; or none that the options select."""
    names: dict[str, dict[str, None]] = {}
    for one in dlqs:
        names.setdefault(one.address, {})[one.name] = None
    where = "; ".join(f"{', '.join(queues)} on {address}" for address, queues in names.items())
    echo_line(f"no dead letters{' that match' if selected else ''} in {where}", err=True)


def oldest(ages: list[float | None]) -> float | None:
    """Return the highest known age; None if no age is known."""
    known = [age for age in ages if age is not None]
    return max(known, default=None)
