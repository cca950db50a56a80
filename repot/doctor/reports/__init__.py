"""What an examination found, for people and for machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.doctor.reports import data, github, sarif

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from repot.doctor.examine import Report

#: The formats that are a text to print as it is.
FORMATS: dict[str, Callable[[Sequence[Report]], str]] = {
    "json": data.render,
    "sarif": sarif.render,
    "github": github.render,
}
