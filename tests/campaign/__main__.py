"""Run the groups of tests, say what each took, and go on where an interrupted campaign was.

    make campaign                        all groups of the campaign but those that run only by name
    make campaign GROUPS="moves effects" some of them
    make test                            what proves each promise once

Groups run in four lanes beside each other, and what they print has their names before it. A group that has passed is
not run again while no file of the checkout has changed; `--again` runs it. A test of the
campaign that fails is repeated three times alone. If it passes each time, it is unstable: the run says so, keeps the
log of the failure, and does not fail. The next change explains it in tests/UNSTABLE.md. `make test` repeats nothing.

Exits with 0, 1 if a group failed, 2 if there is no such group, 130 if interrupted.
"""

from __future__ import annotations

import argparse
import signal
import sys
from time import monotonic
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Column, Table

from campaign.groups import CAMPAIGN, LANES, PARTS, PYTHON, ROOT, TEST, named
from campaign.lanes import Lanes
from campaign.running import Result, prepare, run_group
from campaign.state import Results

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from campaign.groups import Group

LOGS = ROOT / ".campaign"

#: Lines of a failed group's log that are printed again at the end.
_SHOWN = 25


def main() -> int:
    """Run; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="campaign", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("groups", nargs="*", metavar="GROUP", help="run these groups; all without")
    parser.add_argument("--test", action="store_true", help="the groups of `make test` in place of the campaign's")
    parser.add_argument("--again", action="store_true", help="also run the groups that have passed")
    parser.add_argument("--in-lane", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--list", action="store_true", help="print the groups")
    given = parser.parse_args()
    of_kind = TEST if given.test else CAMPAIGN
    try:
        groups = [*named(given.groups, (*of_kind, *PARTS))] or [one for one in of_kind if not one.is_apart]
    except LookupError as error:
        parser.error(str(error))
    if given.list:
        _print_list(of_kind)
        return 0
    LOGS.mkdir(exist_ok=True)
    for number in (signal.SIGINT, signal.SIGTERM):  # a job in the background of a shell ignores Ctrl-C
        signal.signal(number, signal.default_int_handler)
    results = Results(LOGS)
    if given.in_lane:
        return _run_one(groups[0], results, repeats=not given.test)
    before = (
        {} if given.test or given.again else {one.name: found for one in groups if (found := results.passed(one.name))}
    )
    missing = [one for one in groups if one.name not in before]
    for group in missing:
        results.forget(group.name)
    program = [PYTHON, "-m", "campaign", "--in-lane", *(["--test"] if given.test else [])]
    begun = monotonic()
    try:
        Lanes(missing, results, LOGS, program, 1 if given.test else LANES).run()
    except KeyboardInterrupt:
        _print(groups, results, before, monotonic() - begun)
        print("interrupted; the same command goes on with the groups that have not passed", file=sys.stderr)
        return 130
    _print(groups, results, before, monotonic() - begun)
    return int(any(found.problem for one in missing if (found := results.last(one.name))))


def _print_list(groups: Sequence[Group]) -> None:
    for group in groups:
        print(f"{group.name:13} {group.about}{', only by name' if group.is_apart else ''}")


def _run_one(group: Group, results: Results, *, repeats: bool) -> int:
    print(f"== {group.name}: {group.about}", flush=True)
    problem = prepare(group, LOGS)
    try:
        result = Result(problem) if problem else run_group(group, LOGS, repeats=repeats)
    except KeyboardInterrupt:
        return 130
    results.add(group.name, result)
    print(f"== {group.name}: {result.problem or 'passed'}, {result.wall_s:.0f} s", flush=True)
    return int(bool(result.problem))


def _print(groups: Sequence[Group], results: Results, before: Mapping[str, Result], wall_s: float) -> None:
    table = Table(
        "group", "result", *(Column(name, justify="right") for name in ("wall s", "processor s")), "tests", box=None
    )
    found = {one.name: result for one in groups if (result := results.last(one.name))}
    for group in groups:
        if result := found.get(group.name):
            outcome = "FAILED" if result.problem else "skipped" if result.skipped else "passed"
            outcome += ", before" if group.name in before else ""
            table.add_row(
                group.name, outcome, f"{result.wall_s:.0f}", f"{result.processor_s:.0f}", result.skipped or result.tests
            )
        else:
            table.add_row(group.name, "not run", "", "", "")
    table.add_row("all", "", f"{wall_s:.0f}", f"{sum(one.processor_s for one in found.values()):.0f}", "")
    print()
    Console(width=160, highlight=False).print(table)
    for name, result in found.items():
        if name in before:
            continue
        for test, log in result.unstable.items():
            print(f"unstable: {test}: failed once and passed when repeated; the log is {log}")
        if result.problem:
            _print_failure(name, result.problem)


def _print_failure(name: str, problem: str) -> None:
    """Print what a group's log ends with: where only the end of a run is kept, that is all there is."""
    log = LOGS / f"{name}.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    print("\n".join(f"{name:12} | {line}" for line in lines[-_SHOWN:]))
    print(f"FAILED: {name}: {problem}; the log is {log}")


if __name__ == "__main__":
    sys.exit(main())
