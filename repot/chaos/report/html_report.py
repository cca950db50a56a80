"""Write the results as one self-contained HTML page: no external reference, so it can be mailed or archived."""

from __future__ import annotations

from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

from repot.chaos.report.conclusions import conclusions, limits
from repot.chaos.report.matrix import CellStatus, CellSummary, Matrix, counts, matrix
from repot.chaos.report.timeline import names, picture, worker_name
from repot.sanitize import sanitize_report

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jinja2 import Environment

    from repot.chaos.report.explanation import Explanation
    from repot.chaos.report.matrix import Column
    from repot.chaos.report.result import About, Campaign, Cell, Result


def as_html(campaign: Campaign, explanation: Explanation | None = None) -> str:
    """Return the page: a summary, the matrix, the conclusions, and the details of each cell with a timeline.

    The statements of an explanation are its conclusions.
    """
    shown = sanitize_report(campaign)
    table = matrix(shown)
    return (
        _environment()
        .get_template("report.html")
        .render(
            campaign=shown,
            explanation=explanation,
            matrix=table,
            profiles=_profiles(table),
            scenarios=[
                (row, [summary for summary in table.row(row) if summary.cell in table.summaries]) for row in table.rows
            ],
            counts=counts(table),
            conclusions=[(kind, list(found)) for kind, found in groupby(conclusions(shown), key=lambda one: one.kind)],
            limits=limits(shown),
            statuses=list(CellStatus),
            named=lambda result: zip(names(result.task_results), result.task_results, strict=True),
            in_full=_in_full,
            took=_duration(shown.took_s),
            # of an application that guards nothing each cell is plain
            guarded=not shown.app or any(column.guard for column in table.columns),
        )
    )


@cache  # it keeps the compiled template
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=PackageLoader("repot.chaos.report"),
        autoescape=select_autoescape(),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"anchor": _anchor, "after": _after, "short": worker_name, "number": _number}
    environment.globals["picture"] = picture
    return environment


def _anchor(cell: Cell) -> str:
    """Return the id of a cell's details; an id has no blanks."""
    return "-".join(cell.name.split())


def _after(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.2f} s"


def _number(value: Any) -> str:  # noqa: ANN401 - whatever a template has
    """Return a coordinate in as few characters as it needs."""
    return f"{value:g}"


def _profiles(table: Matrix) -> list[tuple[About, list[Column]]]:
    return [(profile, list(columns)) for profile, columns in groupby(table.columns, key=lambda one: one.profile)]


def _in_full(summary: CellSummary) -> list[Result]:
    """Return the repetitions that are shown in full: one of each verdict, and every unexpected one."""
    return list(_distinct(summary.results))


def _distinct(results: Iterable[Result]) -> Iterator[Result]:
    seen = set()
    for result in results:
        if result.verdict not in seen or not result.as_expected:
            yield result
        seen.add(result.verdict)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
