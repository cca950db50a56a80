"""The results as one HTML page without any outside reference, which a mail or a build's artefacts can carry."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from repot.chaos.conclusions import conclusions, limits
from repot.chaos.legible import legible
from repot.chaos.matrix import Matrix, Square, Tone, counts, matrix
from repot.chaos.timeline import names, picture, worker_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jinja2 import Environment

    from repot.chaos.matrix import Column
    from repot.chaos.result import About, Campaign, Cell, Result


def as_html(campaign: Campaign) -> str:
    """The page: a summary, what follows from it, the matrix, and each cell's details with a timeline."""
    shown = legible(campaign)
    table = matrix(shown)
    return (
        _environment()
        .get_template("report.html")
        .render(
            campaign=shown,
            matrix=table,
            profiles=_profiles(table),
            scenarios=[
                (row, [square for square in table.row(row) if square.cell in table.squares]) for row in table.rows
            ],
            counts=counts(table),
            conclusions=[(kind, list(told)) for kind, told in groupby(conclusions(shown), key=lambda one: one.kind)],
            limits=limits(shown),
            tones=list(Tone),
            named=lambda result: zip(names(result.accounts), result.accounts, strict=True),
            in_full=_in_full,
            took=_duration(shown.took_s),
        )
    )


def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=PackageLoader("repot.chaos"),
        autoescape=select_autoescape(),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"anchor": _anchor, "after": _after, "short": worker_name, "number": _number}
    environment.globals["picture"] = picture
    return environment


def _anchor(cell: Cell) -> str:
    """Where a cell's details stand; no identifier holds a blank."""
    return "-".join(cell.name.split())


def _after(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.2f} s"


def _number(value: Any) -> str:  # noqa: ANN401 - whatever a template has
    """A coordinate, in as few characters as it needs."""
    return f"{value:g}"


def _profiles(table: Matrix) -> list[tuple[About, list[Column]]]:
    return [(profile, list(columns)) for profile, columns in groupby(table.columns, key=lambda one: one.profile)]


def _in_full(square: Square) -> list[Result]:
    """The repetitions that are shown in full: one of each finding, and whatever is not as expected."""
    return list(_telling(square.results))


def _telling(results: Iterable[Result]) -> Iterator[Result]:
    seen = set()
    for result in results:
        if result.finding not in seen or not result.as_expected:
            yield result
        seen.add(result.finding)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
