"""The findings as SARIF 2.1.0, for code scanning.

The shape follows the schema and what GitHub asks for: every result has a place, a
finding without one stands at the project's `pyproject.toml`.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from repot.config.masking import masked
from repot.doctor.rule import Place, Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repot.doctor.examine import Judged, NotJudged, Report
    from repot.doctor.policy import StandingWaiver
    from repot.doctor.rule import Rule

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_PROBLEMS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "recommendation"}
_NOWHERE = Place("pyproject.toml", 1)
_NOT_JUDGED = "not-judged"
#: GitHub's limit for descriptions.
_LONGEST_TEXT = 1024


def render(reports: Sequence[Report]) -> str:
    """One run for each application."""
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(report) for report in reports]}
    return json.dumps(log, indent=2)


def _run(report: Report) -> dict[str, Any]:
    places = {name: place for place, name in enumerate(report.rules)}
    return {
        "tool": {
            "driver": {
                "name": "repot doctor",
                "semanticVersion": version("repot"),
                "rules": [_rule(rule) for rule in report.rules.values()],
                "notifications": [
                    {
                        "id": _NOT_JUDGED,
                        "shortDescription": {"text": "A rule that a missing fact kept from its verdict"},
                    }
                ],
            }
        },
        "automationDetails": {"id": f"repot-doctor/{report.facts.app}/"},
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": True,
                "toolExecutionNotifications": [_notification(one, places) for one in report.not_judged],
            }
        ],
        "results": [_result(one, places) for one in (*report.findings, *report.waived)],
    }


def _rule(rule: Rule) -> dict[str, Any]:
    brokers = " and ".join(kind.value for kind in rule.brokers)
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


def _result(one: Judged, places: dict[str, int]) -> dict[str, Any]:
    finding = one.finding
    # code scanning takes places in the project alone
    place = finding.place if finding.place and not finding.place.file.startswith("/") else _NOWHERE
    text = str(masked(f"{finding.subject}: {finding.message}" if finding.subject else finding.message))
    return {
        "ruleId": one.rule.id,
        "ruleIndex": places[one.rule.id],
        "level": _LEVELS[one.rule.severity],
        "message": {"text": text},
        "locations": [_location(place)],
        # what it is about stays the same while lines move
        "partialFingerprints": {"repotDoctor/v1": f"{one.rule.id}:{finding.subject}:{place.file}"},
        "suppressions": [_suppression(one.waiver)] if one.waiver else [],
    }


def _location(place: Place) -> dict[str, Any]:
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": quote(place.file)},
            "region": {"startLine": max(1, place.line)},
        }
    }


def _suppression(waiver: StandingWaiver) -> dict[str, Any]:
    external = waiver.place.file == "pyproject.toml"
    return {
        "kind": "external" if external else "inSource",
        "status": "accepted",
        "justification": str(masked(waiver.reason)),
        "location": _location(waiver.place),
    }


def _notification(one: NotJudged, places: dict[str, int]) -> dict[str, Any]:
    text = f"{one.rule.id} {one.rule.title}: {one.reason}"
    return {
        "descriptor": {"id": _NOT_JUDGED, "index": 0},
        "associatedRule": {"id": one.rule.id, "index": places[one.rule.id]},
        "level": "note",
        "message": {"text": f"{text} ({one.remedy})" if one.remedy else text},
    }
