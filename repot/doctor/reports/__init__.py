"""Reports of the findings, for people and for machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.doctor.reports import data, github, sarif

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from repot.doctor.runner import Report

#: Formats with a function that renders the whole report.
FORMATS: dict[str, Callable[[Sequence[Report]], str]] = {
    "json": data.render,
    "sarif": sarif.render,
    "github": github.render,
}
