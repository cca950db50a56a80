"""What differs between Celery's tests with and without repot, and whether it is known and stated."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.suite import FAILED, MISSING, PASSED, POOLS, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

KNOWN = Path(__file__).with_name("differences.toml")

#: A test is the same with and without repot.
SAME = "same"
#: It passes on stock Celery, fails under repot each time, and the list says why.
KNOWN_DIFFERENCE = "known"
#: The same, and not on the list.
NEW_DIFFERENCE = "new"
#: On the list, and passes.
STALE = "stale"
#: Stock Celery failed it at least once and passed it at least once: it says nothing about repot.
FLAKY_STOCK = "flaky on stock Celery"
#: Stock Celery always passed it, repot not always.
FLAKY = "flaky under repot"
#: Fails, or cannot be run, on stock Celery only.
STOCK_ONLY = "fails on stock Celery only"

#: These end a run with exit code 4.
RED = (NEW_DIFFERENCE, STALE)

_NO_OUTCOME = Outcome(MISSING)


@dataclass(frozen=True, slots=True)
class Difference:
    """An entry of the list: the tests on a broker that differ for one reason."""

    broker: str
    tests: tuple[str, ...]
    reason: str
    #: A matter of timing: they may as well pass.
    sometimes: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    """A test whose outcome is not the same, or that is on the list."""

    broker: str
    test: str
    verdict: str
    #: Each run's outcome, in order.
    stock: tuple[str, ...]
    repot: tuple[str, ...]
    reason: str = ""
    #: What the last failure under repot said, or on stock Celery if repot has none.
    text: str = ""


Runs = list[dict[str, Outcome]]


def known(path: Path = KNOWN, *, pool: str = POOLS[0]) -> tuple[Difference, ...]:
    """The list in the repository, of what differs with a pool."""
    entries = tomllib.loads(path.read_text())["difference"]
    return tuple(
        Difference(broker, tuple(one["tests"]), one["reason"], one.get("sometimes", False))
        for one in entries
        if pool in one.get("pools", POOLS)
        for broker in one["brokers"]
    )


def differing(stock: Runs, repot: Runs) -> list[str]:
    """Tests whose outcomes are not all the same, on either side."""
    tests = {test for one in (*stock, *repot) for test in one}
    return sorted(test for test in tests if len({*_statuses(stock, test), *_statuses(repot, test)}) > 1)


def judge(broker: str, stock: Runs, repot: Runs, listed: Iterable[Difference]) -> list[Judged]:
    """Every test that differs, or is said to.

    `stock` and `repot` are the outcomes of runs; the first ones are of all tests, those
    after them of tests that differed. A test's first outcome alone would take a test
    that fails now and then for a difference.
    """
    entries = {test: one for one in listed if one.broker == broker for test in one.tests}
    tests = sorted({*differing(stock, repot), *(entries.keys() & {*stock[0], *repot[0]})})
    judged = []
    for test in tests:
        theirs, ours, entry = _statuses(stock, test), _statuses(repot, test), entries.get(test)
        text = _text(repot, test) or _text(stock, test)
        reason = entry.reason if entry else ""
        judged.append(Judged(broker, test, _verdict(theirs, ours, entry), theirs, ours, reason, text))
    return judged


def _verdict(stock: Sequence[str], repot: Sequence[str], entry: Difference | None) -> str:
    is_listed = entry is not None
    failed = [status in (FAILED, MISSING) for status in repot]
    if all(failed) and PASSED in stock:
        return KNOWN_DIFFERENCE if is_listed else NEW_DIFFERENCE
    if any(failed) and set(stock) == {PASSED}:
        return KNOWN_DIFFERENCE if is_listed else FLAKY
    if not any(failed) and entry is not None:
        return SAME if entry.sometimes else STALE
    if len(set(stock)) > 1:
        return FLAKY_STOCK
    if set(stock) == set(repot):
        return SAME
    # a test that is skipped under repot alone is a difference
    return STOCK_ONLY if not any(failed) and PASSED in repot else NEW_DIFFERENCE


def counts(runs: Runs) -> dict[str, int]:
    """How many tests of the first run ended in which way."""
    found: dict[str, int] = {}
    for outcome in runs[0].values():
        found[outcome.status] = found.get(outcome.status, 0) + 1
    return dict(sorted(found.items()))


def _statuses(runs: Runs, test: str) -> tuple[str, ...]:
    """Of the first run in any case, of later ones if the test was run again."""
    first, *later = runs
    return (first.get(test, _NO_OUTCOME).status, *(one[test].status for one in later if test in one))


def _text(runs: Iterable[Mapping[str, Outcome]], test: str) -> str:
    texts = [one[test].text for one in runs if test in one and one[test].status == FAILED]
    return texts[-1] if texts else ""
