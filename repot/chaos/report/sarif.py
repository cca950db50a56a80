"""Render verdicts that are not acceptable as SARIF 2.1.0, at the line of the task's function, for code scanning.

A campaign has a rule for each scenario, a load one for each bad verdict.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from repot.chaos.report.load_report import described
from repot.chaos.report.matrix import CellSummary, matrix
from repot.chaos.report.result import UNDER_TEST
from repot.chaos.runner.verdict import Verdict
from repot.doctor.reports.sarif import sarif_location, sarif_log
from repot.doctor.rule import Location
from repot.sanitize import sanitize_report

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from repot.chaos.report.load_report import LoadReport
    from repot.chaos.report.result import Campaign, TaskResult

#: The bad verdicts of a load.
_MEANINGS = {
    Verdict.LEFT: "A task is still at the broker when the load has ended",
    Verdict.DUPLICATED: "An effect of a task happened more often than expected",
    Verdict.FAILED: "The last run of a task raised, and Celery does not run it again",
    Verdict.LOST: "A task was accepted, never completed, and is nowhere to be found",
    Verdict.NEVER_SENT: "The rest of a chain or the callback of a chord was not sent",
    Verdict.UNEXPECTED: "A task ran that nothing here has sent",
}


def as_sarif(campaign: Campaign) -> str:
    """Return a rule for each scenario and a result for each task of the application's in a cell that is not acceptable.

    What has no line in the project, such as a worker that hangs, is not among them.
    """
    shown = sanitize_report(campaign)
    table = matrix(shown)
    rules = [_rule(row.name, row.title, row.text or row.title) for row in table.rows]
    found = (one for number, row in enumerate(table.rows) for one in _of_cells(shown, number, table.row(row)))
    return _log("repot chaos", shown.app, rules, found, is_complete=not shown.interrupted)


def load_sarif(report: LoadReport) -> str:
    """Return a rule for each bad verdict and a result for each task of the application's that has it.

    Tasks that have no line in the project are not among them.
    """
    shown = sanitize_report(report)
    rules = [_rule(_id(verdict), text, text) for verdict, text in _MEANINGS.items()]
    return _log("repot chaos load", shown.app, rules, _of_load(shown))


def _log(
    tool: str, app: str, rules: list[dict[str, Any]], results: Iterable[dict[str, Any]], *, is_complete: bool = True
) -> str:
    run = {
        "tool": {"driver": {"name": tool, "semanticVersion": version("repot"), "rules": rules}},
        "automationDetails": {"id": f"{tool.replace(' ', '-')}/{app}/"},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": is_complete}],
        "results": list(results),
    }
    return sarif_log([run]) + "\n"


def _rule(name: str, title: str, text: str) -> dict[str, Any]:
    return {
        "id": name,
        "name": name,
        "shortDescription": {"text": title},
        "fullDescription": {"text": text},
        "help": {"text": text},
        "defaultConfiguration": {"level": "error"},
        "properties": {"precision": "high", "problem.severity": "error"},
    }


def _result(rule: str, index: int, text: str, place: tuple[str, int], fingerprint: dict[str, str]) -> dict[str, Any]:
    return {
        "ruleId": rule,
        "ruleIndex": index,
        "level": "error",
        "message": {"text": text},
        "locations": [sarif_location(Location(*place))],
        # does not change when lines move
        "partialFingerprints": fingerprint,
    }


def _of_cells(campaign: Campaign, rule: int, cells: tuple[CellSummary, ...]) -> Iterator[dict[str, Any]]:
    for summary in cells:
        for name, runs in _bad_tasks(campaign, summary).items():
            # tasks of the experiment's own have no place
            if name in campaign.places:
                yield _of_task(campaign, rule, summary, name, runs)


def _bad_tasks(campaign: Campaign, summary: CellSummary) -> dict[str, list[TaskResult]]:
    """Return what was not acceptable, one for each run of the cell, by the name of the task."""
    by_name: dict[str, list[TaskResult]] = {}
    for result in summary.unexpected:
        named = {
            campaign.task if one.role == UNDER_TEST else one.name: one
            for one in result.task_results
            if one.verdict.is_bad
        }
        for name, one in named.items():
            by_name.setdefault(name, []).append(one)
    return by_name


def _of_task(campaign: Campaign, rule: int, summary: CellSummary, name: str, runs: list[TaskResult]) -> dict[str, Any]:
    cell, place = summary.cell, campaign.places[name]
    often = f" in {len(runs)} of {len(summary.results)} runs" if len(summary.results) > 1 else ""
    verdicts = " or ".join(sorted({one.verdict.value for one in runs}))
    effects = {f"effects {one.effects_text}" for one in runs if one.counted}
    reasons = "".join(f"; {text}" for text in sorted({*effects, *(one.reason for one in runs)} - {""}))
    where = f"{cell.scenario} under {cell.profile}{' with the guard' if cell.guard else ''}"
    again = summary.unexpected[0].command
    text = f"{name} is {verdicts}{often}: {where}{reasons}. Run it again: {again}"
    return _result(cell.scenario, rule, text, place, {"repotChaos/v1": f"{cell.name}:{name}:{place[0]}"})


def _id(verdict: Verdict) -> str:
    return f"load-{verdict.value.replace(' ', '-')}"


def _of_load(report: LoadReport) -> Iterator[dict[str, Any]]:
    examples = {(one.role, one.name, one.verdict): described(report, one) for one in reversed(report.examples)}
    for (role, name), verdicts in report.rows.items():
        for index, verdict in enumerate(_MEANINGS):
            if verdicts[verdict] and name in report.places:
                place = report.places[name]
                often = f"{verdicts[verdict]} of {verdicts.total()} are {verdict.value}"
                text = f"{name}: {often}. {examples[role, name, verdict]}. Run it again: {report.command}"
                fingerprint = {"repotChaosLoad/v1": f"{role}:{name}:{verdict.value}:{place[0]}"}
                yield _result(_id(verdict), index, text, place, fingerprint)
