"""Write what went wrong in a load as SARIF 2.1.0, for code scanning: at the line of each task's function."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from repot.chaos.report.load_report import described
from repot.chaos.runner.verdict import Verdict
from repot.doctor.reports.sarif import sarif_location, sarif_log
from repot.doctor.rule import Location
from repot.sanitize import sanitize_report

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.report.load_report import LoadReport

_MEANINGS = {
    Verdict.LEFT: "A task is still at the broker when the load has ended",
    Verdict.DUPLICATED: "An effect of a task happened more often than expected",
    Verdict.FAILED: "The last run of a task raised, and Celery does not run it again",
    Verdict.LOST: "A task was accepted, never completed, and is nowhere to be found",
    Verdict.NEVER_SENT: "The rest of a chain or the callback of a chord was not sent",
    Verdict.UNEXPECTED: "A task ran that nothing here has sent",
}


def as_sarif(report: LoadReport) -> str:
    """Return a rule for each bad verdict and a result for each task of the application's that has it.

    Tasks that have no line in the project are not among them.
    """
    shown = sanitize_report(report)
    rules = list(_MEANINGS)
    driver = {
        "name": "repot chaos load",
        "semanticVersion": version("repot"),
        "rules": [_rule(verdict) for verdict in rules],
    }
    run = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"repot-chaos-load/{shown.app}/"},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True}],
        "results": list(_results(shown, rules)),
    }
    return sarif_log([run]) + "\n"


def _id(verdict: Verdict) -> str:
    return f"load-{verdict.value.replace(' ', '-')}"


def _rule(verdict: Verdict) -> dict[str, Any]:
    text = _MEANINGS[verdict]
    return {
        "id": _id(verdict),
        "name": _id(verdict),
        "shortDescription": {"text": text},
        "fullDescription": {"text": text},
        "help": {"text": text},
        "defaultConfiguration": {"level": "error"},
        "properties": {"precision": "high", "problem.severity": "error"},
    }


def _results(report: LoadReport, rules: list[Verdict]) -> Iterator[dict[str, Any]]:
    examples = {(one.role, one.name, one.verdict): described(report, one) for one in reversed(report.examples)}
    for (role, name), verdicts in report.rows.items():
        for verdict in (one for one in rules if verdicts[one] and name in report.places):
            file, line = report.places[name]
            often = f"{verdicts[verdict]} of {verdicts.total()} are {verdict.value}"
            text = f"{name}: {often}. {examples[role, name, verdict]}. Run it again: {report.command}"
            yield {
                "ruleId": _id(verdict),
                "ruleIndex": rules.index(verdict),
                "level": "error",
                "message": {"text": text},
                "locations": [sarif_location(Location(file, line))],
                # does not change when lines move
                "partialFingerprints": {"repotChaosLoad/v1": f"{role}:{name}:{verdict.value}:{file}"},
            }
