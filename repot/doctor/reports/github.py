"""Render the findings as annotations of a GitHub workflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.doctor.rule import Severity
from repot.masking import masked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repot.doctor.runner import Report, Violation

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def render(reports: Sequence[Report]) -> str:
    """Render one line for each finding, the most severe first: GitHub shows ten of each severity."""
    return "\n".join(_line(one) for report in reports for one in report.findings)


def _line(violation: Violation) -> str:
    location = violation.finding.location
    where = f"file={_property(location.file)},line={location.line}," if location else ""
    title = _property(f"{violation.rule.id} {violation.rule.title}")
    concerned = violation.finding.setting_or_task
    text = f"{concerned}: {violation.finding.message}\n{violation.fix}" if concerned else violation.finding.message
    return f"::{_COMMANDS[violation.rule.severity]} {where}title={title}::{_escaped(str(masked(text)))}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
