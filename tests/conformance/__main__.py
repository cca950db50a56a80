"""Run Celery's own integration tests with and without repot, on both brokers, and say what differs.

    make conformance
    PYTHONPATH=tests python -m conformance [--broker redis|rabbitmq|both] [--pool prefork] [--again 2] [--jobs 4]
        [--longest 3600] [--json] [TEST...]

Each of the four runs has a Redis and a virtual host of RabbitMQ of its own. A test that differs is run again,
on stock Celery and under repot, `--again` times. tests/conformance/differences.toml
lists what is meant to differ, and why. Exits with 4 if a test differs that is not on
that list, or does not differ that is.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from threading import Lock
from typing import TYPE_CHECKING

from conformance.judging import RED, SAME, counts, differing, judge, known
from conformance.suite import BROKERS, FAILED, LONGEST_RUN_S, POOLS, SUITE, Arm, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conformance.judging import Judged, Runs
    from conformance.suite import Outcome

#: Lines of a new difference's failure that are shown; --json has more.
_SHOWN = 15


class Progress:
    """One line on a terminal, or a line every fifty tests elsewhere, that says how far each run has come."""

    def __init__(self) -> None:
        """Begin with no run."""
        self._done: dict[str, int] = {}
        self._lock = Lock()

    def note(self, name: str, done: int) -> None:
        """So many tests of a run have ended."""
        with self._lock:
            before = self._done.get(name, 0)
            self._done[name] = done
            if sys.stderr.isatty():
                line = "; ".join(f"{one}: {number}" for one, number in self._done.items())
                print(f"\r{line}", end="", file=sys.stderr, flush=True)
            elif done // 50 > before // 50:
                print(f"{name}: {done} tests", file=sys.stderr, flush=True)


def main() -> int:
    """Run, run again what differs, judge, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", metavar="TEST", help="as pytest names them; all without")
    parser.add_argument("--broker", choices=(*BROKERS, "both"), default="both")
    parser.add_argument("--pool", choices=POOLS, default=POOLS[0], help="of the worker (default prefork)")
    parser.add_argument("--again", type=int, default=2, help="how often a test that differs is run again (default 2)")
    parser.add_argument("--jobs", type=int, default=4, help="runs at a time (default 4)")
    ends = "seconds; a run is ended then, and a test that it did not come to counts as failed (default 3600)"
    parser.add_argument("--longest", type=float, default=LONGEST_RUN_S, help=ends)
    parser.add_argument("--json", action="store_true", help="the report as JSON on standard output")
    options = parser.parse_args()
    if not SUITE.exists():
        parser.error(f"{SUITE} is missing: run scripts/celery_tests")
    brokers = BROKERS if options.broker == "both" else (options.broker,)
    runs = _all_runs(brokers, options)
    listed = known(pool=options.pool)
    judged = [
        found
        for one in brokers
        for found in judge(one, runs[Arm(one, False, options.pool)], runs[Arm(one, True, options.pool)], listed)
    ]
    (_print_json if options.json else _print)(runs, judged)
    return 4 if any(one.verdict in RED for one in judged) else 0


def _all_runs(brokers: Sequence[str], options: argparse.Namespace) -> dict[Arm, Runs]:
    pool = options.pool
    arms = [Arm(broker, is_configured, pool) for broker in brokers for is_configured in (False, True)]
    progress = Progress()

    def once(arm: Arm, some: Sequence[str], name: str) -> dict[str, Outcome]:
        return run(arm, some, within_s=options.longest, progress=lambda done: progress.note(name, done))

    with ThreadPoolExecutor(options.jobs) as executor:
        first = executor.map(lambda arm: once(arm, options.tests, str(arm)), arms)
        runs = {arm: [outcome] for arm, outcome in zip(arms, first, strict=True)}
        for number in range(options.again):
            unsteady = {one: differing(runs[Arm(one, False, pool)], runs[Arm(one, True, pool)]) for one in brokers}
            todo = [arm for arm in arms if unsteady[arm.broker]]
            name = f"again {number + 1}"
            more = executor.map(lambda arm: once(arm, unsteady[arm.broker], f"{arm}, {name}"), todo)  # noqa: B023 - run now
            for arm, outcome in zip(todo, more, strict=True):
                runs[arm].append(outcome)
    return runs


def _print(runs: dict[Arm, Runs], judged: Sequence[Judged]) -> None:
    print()
    for arm, found in runs.items():
        print(f"{arm!s:16} {', '.join(f'{number} {status}' for status, number in counts(found).items())}")
    for one in sorted(judged, key=lambda found: (found.verdict in RED, found.verdict)):
        if one.verdict == SAME:
            continue
        print(f"\n{one.verdict}: {one.test} ({one.broker})")
        print(f"  stock {' '.join(one.stock)}; repot {' '.join(one.repot)}")
        if one.reason:
            print(f"  {one.reason}")
        elif one.text:
            print("\n".join(f"  | {line}" for line in one.text.splitlines()[-_SHOWN:]))


def _print_json(runs: dict[Arm, Runs], judged: Sequence[Judged]) -> None:
    report = {
        "runs": {str(arm): counts(found) for arm, found in runs.items()},
        # those that fail without repot as well are among them, and not below
        "failed": {
            str(arm): sorted(test for test, outcome in found[0].items() if outcome.status == FAILED)
            for arm, found in runs.items()
        },
        "tests": [asdict(one) for one in judged],
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    sys.exit(main())
