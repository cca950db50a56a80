"""The reports as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from repot.config.masking import masked
from repot.doctor.rule import Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repot.doctor.examine import Judged, Report
    from repot.doctor.rule import Rule


def render(reports: Sequence[Report]) -> str:
    """All of it; secrets masked."""
    return json.dumps({"applications": [_report(report) for report in reports]}, indent=2)


def rule(one: Rule) -> dict[str, Any]:
    """A rule as data."""
    return {
        "id": one.id,
        "title": one.title,
        "severity": one.severity.label,
        "brokers": [kind.value for kind in one.brokers],
        "versions": one.versions,
        "live": one.live,
        "reason": one.reason,
        "fix": one.fix,
        "evidence": list(one.evidence),
    }


def _report(report: Report) -> dict[str, Any]:
    facts = report.facts
    live = facts.live
    return {
        "app": facts.app,
        "broker": {
            "kind": facts.kind.value,
            "servers": [str(server) for server in facts.servers],
            "moved_from": facts.moved_from.value if facts.moved_from else None,
            "product": live.product if live else None,
            "version": live.version if live else None,
        },
        "tasks": len(facts.tasks),
        "tasks_of_libraries": list(facts.foreign_tasks),
        "rules": len(report.rules),
        "findings": [_judged(report, one) for one in report.findings],
        "waived": [_judged(report, one) for one in report.waived],
        "not_judged": [
            {"rule": one.rule.id, "title": one.rule.title, "reason": one.reason, "remedy": one.remedy}
            for one in report.not_judged
        ],
        "summary": {severity.label: report.count(severity) for severity in Severity},
    }


def _judged(report: Report, one: Judged) -> dict[str, Any]:
    finding = one.finding
    found: dict[str, Any] = {
        "rule": one.rule.id,
        "severity": one.rule.severity.label,
        "title": one.rule.title,
        "message": masked(finding.message),
        "setting": finding.setting or None,
        "origin": report.facts.settings[finding.setting].origin if finding.setting in report.facts.settings else None,
        "task": finding.task or None,
        "file": finding.place.file if finding.place else None,
        "line": finding.place.line if finding.place else None,
        "fix": one.fix,
    }
    if one.waiver:
        found["waiver"] = {"reason": one.waiver.reason, "place": str(one.waiver.place)}
    return found
