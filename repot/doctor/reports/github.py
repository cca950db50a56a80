"""The findings as annotations of a GitHub workflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.config.masking import masked
from repot.doctor.rule import Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repot.doctor.examine import Judged, Report

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def render(reports: Sequence[Report]) -> str:
    """A line for each finding, the worst first, as GitHub shows ten of a kind."""
    return "\n".join(_line(one) for report in reports for one in report.findings)


def _line(one: Judged) -> str:
    place = one.finding.place
    where = f"file={_property(place.file)},line={place.line}," if place else ""
    title = _property(f"{one.rule.id} {one.rule.title}")
    subject = one.finding.subject
    text = f"{subject}: {one.finding.message}\n{one.fix}" if subject else one.finding.message
    return f"::{_COMMANDS[one.rule.severity]} {where}title={title}::{_escaped(str(masked(text)))}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
