"""Write the results as JUnit XML, which CI systems display."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.chaos.report.matrix import CellSummary, matrix
from repot.chaos.report.timeline import names
from repot.sanitize import sanitize_report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from junitparser import TestCase, TestSuite

    from repot.chaos.report.result import About, Campaign, Result, Unmeasured


_DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>'


def as_junit(campaign: Campaign) -> str:
    """Return a suite for each scenario and a case for each run; an unexpected verdict is a failure."""
    shown = sanitize_report(campaign)
    table = matrix(shown)
    return document("repot chaos", [_suite(row, table.row(row), shown) for row in table.rows])


def document(name: str, suites: Sequence[TestSuite]) -> str:
    """Return the text of a file with these suites."""
    from junitparser import JUnitXml

    report = JUnitXml(name)
    for suite in suites:
        report.add_testsuite(suite)
    report.update_statistics()
    text: bytes = report.tostring()
    return f"{_DECLARATION}\n{text.decode()}\n"


def describe(result: Result) -> str:
    """Return what a run found, as lines of text."""
    times = result.times
    lines = [
        f"{result.cell.name}, run {result.number}: found {result.verdict}, {result.expected_text}",
        f"{result.product} {result.version}, seed {result.seed}",
    ]
    for name, one in zip(names(result.task_results), result.task_results, strict=True):
        error, reason = f", {one.error}" if one.error else "", f"; {one.reason}" if one.reason else ""
        happened = f"deliveries {len(one.history.deliveries)}, runs {len(one.history.runs)}, effects {one.effects_text}"
        lines.append(
            f"{name} {one.history.task}: {one.verdict.value}; {one.sending.value} when sent{error}; {happened}{reason}"
        )
    lines += [f"fault: {one.what}, {one.begun:.2f} s to {one.ended:.2f} s" for one in result.windows]
    for what, seconds in (("detected", times.detected), ("redelivered", times.redelivered), ("steady", times.steady)):
        lines.append(f"{what}: {'never' if seconds is None else f'after {seconds:.2f} s'}")
    lines.append(f"silent: {times.silent:.2f} s")
    if result.untested:
        lines.append(f"not tested on your settings: {result.untested}")
        lines.append(f"longest run: {result.longest_run_s:.1f} s")
    lines += [f"log at {one.at:.2f} s: {one.text}" for one in result.notices]
    if result.left:
        lines.append(f"left: {result.left}")
    return "\n".join((*lines, f"run it again: {result.command}"))


def _suite(row: About, summaries: tuple[CellSummary, ...], campaign: Campaign) -> TestSuite:
    from junitparser import TestSuite

    suite = TestSuite(row.name)
    suite.timestamp = campaign.created
    measure = {"effects": campaign.measure} if campaign.measure else {}
    for name, value in {"title": row.title, "seed": str(campaign.seed), **measure, **campaign.versions}.items():
        suite.add_property(name, value)
    for summary in summaries:
        suite.add_testcases([_measured(result, len(summary.results)) for result in summary.results])
        suite.add_testcases([_unmeasured(one, len(summary.unmeasured)) for one in summary.unmeasured])
    return suite


def _measured(result: Result, total: int) -> TestCase:
    from junitparser import Failure

    case = _case(result, total)
    case.time = round(result.took_s, 3)
    if not result.as_expected:
        failure = Failure(f"found {result.verdict}, {result.expected_text}", "unexpected")
        failure.text = describe(result)
        case.result = [failure]
    return case


def _unmeasured(unmeasured: Unmeasured, total: int) -> TestCase:
    from junitparser import Error, Skipped

    case = _case(unmeasured, total)
    if unmeasured.failed:
        error = Error(unmeasured.why, "experiment")
        error.text = f"{unmeasured.why}\nrun it again: {unmeasured.command}"
        case.result = [error]
    else:
        case.result = [Skipped(unmeasured.why)]
    return case


def _case(one: Result | Unmeasured, total: int) -> TestCase:
    from junitparser import TestCase

    # a single run has no number: CI systems compare it by its name with earlier builds
    number = f" #{one.number}" if total > 1 or one.number > 1 else ""
    return TestCase(
        f"{one.cell.profile} {'guarded' if one.cell.guard else 'plain'}{number}", f"repot.chaos.{one.cell.scenario}"
    )
