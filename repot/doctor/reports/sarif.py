"""Render the findings as SARIF 2.1.0, for code scanning.

The shape follows the schema and GitHub's requirements: every result has a location; a finding without one is reported
at the project's `pyproject.toml`.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from repot.doctor.rule import Location, Severity
from repot.masking import masked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repot.doctor.config import Waiver
    from repot.doctor.rule import Rule
    from repot.doctor.runner import NotJudged, Report, Violation

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_PROBLEMS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "recommendation"}
_DEFAULT_LOCATION = Location("pyproject.toml", 1)
_NOT_JUDGED = "not-judged"
#: GitHub's limit for descriptions, in characters.
_LONGEST_TEXT = 1024


def render(reports: Sequence[Report]) -> str:
    """Render one SARIF run for each application."""
    return sarif_log([_run(report) for report in reports])


def sarif_log(runs: Sequence[dict[str, Any]]) -> str:
    """Return the text of a SARIF file with these runs."""
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": runs}, indent=2)


def _run(report: Report) -> dict[str, Any]:
    indexes = {name: index for index, name in enumerate(report.rules)}
    return {
        "tool": {
            "driver": {
                "name": "repot doctor",
                "semanticVersion": version("repot"),
                "rules": [_rule(rule) for rule in report.rules.values()],
                "notifications": [
                    {
                        "id": _NOT_JUDGED,
                        "shortDescription": {"text": "A rule without a verdict, because a fact is unknown"},
                    }
                ],
            }
        },
        "automationDetails": {"id": f"repot-doctor/{report.facts.app}/"},
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": True,
                "toolExecutionNotifications": [_notification(one, indexes) for one in report.not_judged],
            }
        ],
        "results": [_result(one, indexes) for one in (*report.findings, *report.waived)],
    }


def _rule(rule: Rule) -> dict[str, Any]:
    brokers = " and ".join(kind.name for kind in rule.brokers)
    evidence = "\n".join(f"- {one}" for one in rule.evidence)
    return {
        "id": rule.id,
        "name": rule.id,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.reason[:_LONGEST_TEXT]},
        "help": {
            "text": f"{rule.reason}\n\n{rule.fix}",
            "markdown": f"{rule.reason}\n\n```\n{rule.fix}\n```\n\nConcerns {brokers}. Evidence:\n\n{evidence}",
        },
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
        "properties": {
            "tags": [kind.name.lower() for kind in rule.brokers],
            "precision": "high",
            "problem.severity": _PROBLEMS[rule.severity],
        },
    }


def _result(violation: Violation, indexes: dict[str, int]) -> dict[str, Any]:
    finding = violation.finding
    # code scanning accepts locations inside the project only
    location = finding.location if finding.location and not finding.location.file.startswith("/") else _DEFAULT_LOCATION
    text = str(masked(f"{finding.setting_or_task}: {finding.message}" if finding.setting_or_task else finding.message))
    return {
        "ruleId": violation.rule.id,
        "ruleIndex": indexes[violation.rule.id],
        "level": _LEVELS[violation.rule.severity],
        "message": {"text": text},
        "locations": [sarif_location(location)],
        # does not change when lines move
        "partialFingerprints": {"repotDoctor/v1": f"{violation.rule.id}:{finding.setting_or_task}:{location.file}"},
        "suppressions": [_suppression(violation.waiver)] if violation.waiver else [],
    }


def sarif_location(location: Location) -> dict[str, Any]:
    """Return a place of the project in the form of SARIF."""
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": quote(location.file)},
            "region": {"startLine": max(1, location.line)},
        }
    }


def _suppression(waiver: Waiver) -> dict[str, Any]:
    external = waiver.location.file == "pyproject.toml"
    return {
        "kind": "external" if external else "inSource",
        "status": "accepted",
        "justification": str(masked(waiver.reason)),
        "location": sarif_location(waiver.location),
    }


def _notification(unjudged: NotJudged, indexes: dict[str, int]) -> dict[str, Any]:
    text = f"{unjudged.rule.id} {unjudged.rule.title}: {unjudged.reason}"
    return {
        "descriptor": {"id": _NOT_JUDGED, "index": 0},
        "associatedRule": {"id": unjudged.rule.id, "index": indexes[unjudged.rule.id]},
        "level": "note",
        "message": {"text": f"{text} ({unjudged.remedy})" if unjudged.remedy else text},
    }
