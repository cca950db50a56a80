"""Run the groups of tests, say what each took, and go on where an interrupted campaign was.

    make campaign                        all groups of the campaign
    make campaign GROUPS="moves effects" some of them
    make test                            what proves each promise once

A group that has passed is not run again while no file of the checkout has changed; `--again` runs it. A test of the
campaign that fails is repeated three times alone. If it passes each time, it is unstable: the run says so, keeps the
log of the failure, and does not fail. The next change explains it in tests/UNSTABLE.md. `make test` repeats nothing.

Exits with 0, 1 if a group failed, 2 if there is no such group, 130 if interrupted.
"""

from __future__ import annotations

import argparse
import signal
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Column, Table

from campaign.groups import CAMPAIGN, PARTS, ROOT, TEST, named
from campaign.running import Result, prepare, run_group
from campaign.state import Passed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from campaign.groups import Group

LOGS = ROOT / ".campaign"


def main() -> int:
    """Run; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="campaign", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("groups", nargs="*", metavar="GROUP", help="run these groups; all without")
    parser.add_argument("--test", action="store_true", help="the groups of `make test` in place of the campaign's")
    parser.add_argument("--again", action="store_true", help="also run the groups that have passed")
    parser.add_argument("--list", action="store_true", help="print the groups")
    given = parser.parse_args()
    of_kind = TEST if given.test else CAMPAIGN
    try:
        groups = list(named(given.groups, (*of_kind, *PARTS)) if given.groups else of_kind)
    except LookupError as error:
        parser.error(str(error))
    if given.list:
        for group in groups:
            print(f"{group.name:13} {group.about}")
        return 0
    LOGS.mkdir(exist_ok=True)
    passed = Passed(LOGS / ("test.json" if given.test else "campaign.json"))
    if given.test or given.again:
        passed.groups.clear()
    results: dict[str, Result] = {}
    for number in (signal.SIGINT, signal.SIGTERM):  # a job in the background of a shell ignores Ctrl-C
        signal.signal(number, signal.default_int_handler)
    try:
        _run(groups, passed, results, repeats=not given.test)
    except KeyboardInterrupt:
        _print(groups, results, passed.groups)
        print("interrupted; the same command goes on with the groups that have not passed", file=sys.stderr)
        return 130
    _print(groups, results, passed.groups)
    return int(any(one.problem for one in results.values()))


def _run(groups: Sequence[Group], passed: Passed, results: dict[str, Result], *, repeats: bool) -> None:
    for group in groups:
        if group.name in passed.groups:
            continue
        print(f"\n== {group.name}: {group.about}", flush=True)
        if problem := prepare(group):
            results[group.name] = Result(problem)
            continue
        results[group.name] = run_group(group, LOGS, repeats=repeats)
        if not results[group.name].problem:
            passed.add(group.name, results[group.name])


def _print(groups: Sequence[Group], results: Mapping[str, Result], before: Mapping[str, Result]) -> None:
    table = Table(
        "group", "result", *(Column(name, justify="right") for name in ("wall s", "processor s")), "tests", box=None
    )
    for group in groups:
        if result := results.get(group.name) or before.get(group.name):
            outcome = "FAILED" if result.problem else "skipped" if result.skipped else "passed"
            outcome += "" if group.name in results else ", before"
            table.add_row(
                group.name, outcome, f"{result.wall_s:.0f}", f"{result.processor_s:.0f}", result.skipped or result.tests
            )
        else:
            table.add_row(group.name, "not run", "", "", "")
    found = [one for group in groups if (one := results.get(group.name) or before.get(group.name))]
    total = (sum(one.wall_s for one in found), sum(one.processor_s for one in found))
    table.add_row("all", "", *(f"{one:.0f}" for one in total), "")
    print()
    Console(width=160, highlight=False).print(table)
    for group in groups:
        if result := results.get(group.name):
            for test, log in result.unstable.items():
                print(f"unstable: {test}: failed once and passed when repeated; the log is {log}")
            if result.problem:
                print(f"FAILED: {group.name}: {result.problem}; the log is {LOGS / group.name}.log")


if __name__ == "__main__":
    sys.exit(main())
