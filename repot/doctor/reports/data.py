"""Render the reports as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from repot.doctor.rule import Severity
from repot.masking import masked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repot.doctor.rule import Rule
    from repot.doctor.runner import Report, Violation


def render(reports: Sequence[Report]) -> str:
    """Render every report; mask secrets."""
    return json.dumps({"applications": [_report(report) for report in reports]}, indent=2)


def rule(rule: Rule) -> dict[str, Any]:
    """Return a rule as data for JSON."""
    return {
        "id": rule.id,
        "title": rule.title,
        "severity": rule.severity.label,
        "brokers": [kind.name for kind in rule.brokers],
        "versions": rule.versions,
        "live": rule.live,
        "reason": rule.reason,
        "fix": rule.fix,
        "evidence": list(rule.evidence),
    }


def _report(report: Report) -> dict[str, Any]:
    facts = report.facts
    live = facts.live
    return {
        "app": facts.app,
        "broker": {
            "kind": facts.kind.name,
            "servers": [str(server) for server in facts.servers],
            "moved_from": facts.moved_from.name if facts.moved_from else None,
            "product": live.product if live else None,
            "version": live.version if live else None,
        },
        "versions": {"python": facts.release.python, **facts.versions._asdict()},
        "read_with": facts.python or None,
        "tasks": len(facts.tasks),
        "tasks_of_libraries": list(facts.library_tasks),
        "rules": len(report.rules),
        "findings": [_violation(report, one) for one in report.findings],
        "waived": [_violation(report, one) for one in report.waived],
        "not_judged": [
            {"rule": one.rule.id, "title": one.rule.title, "reason": one.reason, "remedy": one.remedy}
            for one in report.not_judged
        ],
        "summary": {severity.label: report.count(severity) for severity in Severity},
    }


def _violation(report: Report, violation: Violation) -> dict[str, Any]:
    finding = violation.finding
    found: dict[str, Any] = {
        "rule": violation.rule.id,
        "severity": violation.rule.severity.label,
        "title": violation.rule.title,
        "message": masked(finding.message),
        "setting": finding.setting or None,
        "origin": report.facts.settings[finding.setting].origin if finding.setting in report.facts.settings else None,
        "task": finding.task or None,
        "file": finding.location.file if finding.location else None,
        "line": finding.location.line if finding.location else None,
        "fix": violation.fix,
    }
    if violation.waiver:
        found["waiver"] = {"reason": violation.waiver.reason, "place": str(violation.waiver.location)}
    return found
