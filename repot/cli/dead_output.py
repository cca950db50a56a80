"""What `repot dead` prints for people; letters are written by strangers, and nothing of them steers a terminal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from repot.cli.printable import columns, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from repot.deadletter.search import Box


def table(rows: Sequence[tuple[str, ...]], heads: tuple[str, ...]) -> None:
    """A line a row, whatever its cells hold."""
    for number, line in enumerate(columns(rows, heads)):
        click.echo(line if number else click.style(line, bold=True))


def fields(found: dict[str, Any]) -> None:
    """A field a line; what is long comes last, with its line breaks."""
    traceback = found.pop("traceback")
    width = max(map(len, found))
    for name, value in found.items():
        text = printable(value) if isinstance(value, str) else json.dumps(value)
        if value not in (None, "", {}):
            click.echo(f"{name:{width}}  {text}")
    if traceback:
        click.echo(f"\n{printable(traceback.rstrip(), lines=True)}")
    click.echo()


def note_missing(boxes: Iterable[Box]) -> None:
    """Say which queues are not there: a wrong name must not read as a queue without letters."""
    for box in boxes:
        click.echo(f"note: there is no queue {box.name!r} on {box.address}; is the name right?", err=True)


def oldest(ages: list[float | None]) -> float | None:
    """The highest of the ages that are known."""
    known = [age for age in ages if age is not None]
    return max(known, default=None)


def age(seconds: Any) -> str:  # noqa: ANN401
    """An age for people."""
    from repot.deadletter.shown import duration

    return "?" if seconds is None else duration(seconds)
