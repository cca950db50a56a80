"""Render verdicts that are not acceptable as SARIF 2.1.0, at the line of the task's function, for code scanning."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from repot.chaos.report.matrix import CellSummary, matrix
from repot.chaos.report.result import UNDER_TEST
from repot.doctor.reports.sarif import sarif_location, sarif_log
from repot.doctor.rule import Location
from repot.sanitize import sanitize_report

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.report.result import About, Campaign, TaskResult


def as_sarif(campaign: Campaign) -> str:
    """Return a rule for each scenario and a result for each task of the application's in a cell that is not acceptable.

    What has no line in the project, such as a worker that hangs, is not among them.
    """
    shown = sanitize_report(campaign)
    table = matrix(shown)
    found = [one for number, row in enumerate(table.rows) for one in _results(shown, number, table.row(row))]
    driver = {
        "name": "repot chaos",
        "semanticVersion": version("repot"),
        "rules": [_rule(row) for row in table.rows],
    }
    run = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"repot-chaos/{shown.app}/"},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": not shown.interrupted}],
        "results": found,
    }
    return sarif_log([run]) + "\n"


def _rule(scenario: About) -> dict[str, Any]:
    text = scenario.text or scenario.title
    return {
        "id": scenario.name,
        "name": scenario.name,
        "shortDescription": {"text": scenario.title},
        "fullDescription": {"text": text},
        "help": {"text": text},
        "defaultConfiguration": {"level": "error"},
        "properties": {"precision": "high", "problem.severity": "error"},
    }


def _results(campaign: Campaign, rule: int, cells: tuple[CellSummary, ...]) -> Iterator[dict[str, Any]]:
    for summary in cells:
        for name, runs in _bad_tasks(campaign, summary).items():
            # tasks of the experiment's own have no place
            if name in campaign.places:
                yield _result(campaign, rule, summary, name, runs)


def _bad_tasks(campaign: Campaign, summary: CellSummary) -> dict[str, list[TaskResult]]:
    """Return what was not acceptable, one for each run of the cell, by the name of the task."""
    found: dict[str, list[TaskResult]] = {}
    for result in summary.unexpected:
        named = {
            campaign.task if one.role == UNDER_TEST else one.name: one
            for one in result.task_results
            if one.verdict.is_bad
        }
        for name, one in named.items():
            found.setdefault(name, []).append(one)
    return found


def _result(campaign: Campaign, rule: int, summary: CellSummary, name: str, runs: list[TaskResult]) -> dict[str, Any]:
    cell, (file, line) = summary.cell, campaign.places[name]
    often = f" in {len(runs)} of {len(summary.results)} runs" if len(summary.results) > 1 else ""
    verdicts = " or ".join(sorted({one.verdict.value for one in runs}))
    effects = {f"effects {one.effects_text}" for one in runs if one.counted}
    reasons = "".join(f"; {text}" for text in sorted({*effects, *(one.reason for one in runs)} - {""}))
    where = f"{cell.scenario} under {cell.profile}{' with the guard' if cell.guard else ''}"
    again = summary.unexpected[0].command
    return {
        "ruleId": cell.scenario,
        "ruleIndex": rule,
        "level": "error",
        "message": {"text": f"{name} is {verdicts}{often}: {where}{reasons}. Run it again: {again}"},
        "locations": [sarif_location(Location(file, line))],
        # does not change when lines move
        "partialFingerprints": {"repotChaos/v1": f"{cell.name}:{name}:{file}"},
    }
