"""Write the report of a load as JUnit XML, which CI systems display."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.chaos.report.junit import document
from repot.chaos.report.load_report import described, sums_text
from repot.chaos.report.result import LOAD
from repot.sanitize import sanitize_report

if TYPE_CHECKING:
    from junitparser import TestCase

    from repot.chaos.report.load_report import LoadReport


def as_junit(report: LoadReport) -> str:
    """Return one suite with a case for each task, those that tasks have sent included; a bad verdict is a failure."""
    from junitparser import TestSuite

    shown = sanitize_report(report)
    suite = TestSuite("load")
    suite.timestamp = shown.created
    facts = {
        "app": shown.app,
        "profile": shown.profile,
        "seed": str(shown.seed),
        "sent": f"{shown.sent} of {shown.planned}",
        "effects": shown.measure,
        "faults": str(len(shown.windows)),
        shown.product: shown.version,
    }
    for name, value in (facts | shown.versions).items():
        suite.add_property(name, value)
    suite.add_testcases([_case(shown, role, name) for role, name in shown.rows])
    suite.time = round(shown.took_s, 3)
    return document("repot chaos load", [suite])


def _case(report: LoadReport, role: str, name: str) -> TestCase:
    from junitparser import Failure, TestCase

    case = TestCase(name or "(unknown)", f"repot.chaos.load.{'sent' if role == LOAD else role}")
    verdicts = report.rows[role, name]
    bad = {verdict: number for verdict, number in verdicts.items() if verdict.is_bad}
    if bad:
        found = ", ".join(f"{number} {verdict.value}" for verdict, number in bad.items())
        failure = Failure(f"{found} of {verdicts.total()}", "unexpected")
        examples = [described(report, one) for one in report.examples if (one.role, one.name) == (role, name)]
        failure.text = "\n".join((sums_text(verdicts), *examples, f"run it again: {report.command}"))
        case.result = [failure]
    return case
