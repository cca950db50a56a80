"""How the outcomes of Celery's own tests are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from conformance.judging import (
    FLAKY,
    FLAKY_STOCK,
    KNOWN_DIFFERENCE,
    NEW_DIFFERENCE,
    SAME,
    STALE,
    STOCK_ONLY,
    Difference,
    counts,
    differing,
    judge,
    known,
)
from conformance.suite import BROKERS, Outcome, outcomes

if TYPE_CHECKING:
    from pathlib import Path

    from conformance.judging import Runs

LISTED = Difference("redis", ("t",), "late acks")


def runs(*statuses: str) -> Runs:
    """One test's outcome in each run; a dash where it was not run."""
    return [{} if status == "-" else {"t": Outcome(status, "why")} for status in statuses]


@pytest.mark.parametrize(
    ("stock", "repot", "verdict", "verdict_if_listed"),
    [
        (["passed"], ["passed"], None, STALE),
        (["failed"], ["failed"], None, None),
        (["passed"] * 3, ["failed"] * 3, NEW_DIFFERENCE, KNOWN_DIFFERENCE),
        (["passed"] * 3, ["failed", "passed", "passed"], FLAKY, KNOWN_DIFFERENCE),
        (["passed", "failed", "passed"], ["failed", "passed", "failed"], FLAKY_STOCK, None),
        (["passed", "failed", "failed"], ["failed"] * 3, NEW_DIFFERENCE, KNOWN_DIFFERENCE),
        (["failed", "passed", "passed"], ["passed"] * 3, FLAKY_STOCK, STALE),
        (["failed"] * 3, ["passed"] * 3, STOCK_ONLY, STALE),
        (["passed"] * 3, ["-"] * 3, NEW_DIFFERENCE, KNOWN_DIFFERENCE),
        (["passed"] * 3, ["skipped"] * 3, NEW_DIFFERENCE, None),
    ],
)
def test_a_difference_is_judged(
    stock: list[str], repot: list[str], verdict: str | None, verdict_if_listed: str | None
) -> None:
    """By all runs of a test, not by its first; `None` where only one of the two is looked at."""
    found = judge("redis", runs(*stock), runs(*repot), ())
    assert ([] if verdict is None else [verdict]) == [one.verdict for one in found]
    if verdict_if_listed is not None:
        (listed,) = judge("redis", runs(*stock), runs(*repot), [LISTED])
        assert (verdict_if_listed, "late acks") == (listed.verdict, listed.reason)


def test_what_differs_now_and_then_may_pass() -> None:
    """A race is lost at times; that it is won this time does not make the list wrong."""
    race = Difference("redis", ("t",), "a race", sometimes=True)
    (won,) = judge("redis", runs("passed"), runs("passed"), [race])
    (lost,) = judge("redis", runs("passed"), runs("failed"), [race])
    assert (won.verdict, lost.verdict) == (SAME, KNOWN_DIFFERENCE)


def test_an_entry_counts_on_its_broker_alone() -> None:
    (found,) = judge("rabbitmq", runs("passed"), runs("failed"), [LISTED])
    assert found.verdict == NEW_DIFFERENCE


def test_what_differs_is_run_again() -> None:
    """Also what one side did not come to."""
    stock = [{"a": Outcome("passed"), "b": Outcome("passed"), "c": Outcome("failed"), "d": Outcome("passed")}]
    repot = [{"a": Outcome("passed"), "b": Outcome("failed"), "c": Outcome("failed")}]
    assert differing(stock, repot) == ["b", "d"]


def test_what_pytest_runs_again_counts_by_its_last_run() -> None:
    lines = [
        {"test": "a", "phase": "setup", "outcome": "passed", "text": ""},
        {"test": "a", "phase": "call", "outcome": "rerun", "text": "no"},
        {"test": "a", "phase": "call", "outcome": "passed", "text": ""},
        {"test": "b", "phase": "call", "outcome": "passed", "text": ""},
        {"test": "b", "phase": "teardown", "outcome": "failed", "text": "left"},
        {"test": "c", "phase": "setup", "outcome": "skipped", "text": "not here"},
    ]
    found = outcomes(lines)
    assert {test: one.status for test, one in found.items()} == {"a": "passed", "b": "failed", "c": "skipped"}
    assert counts([found]) == {"failed": 1, "passed": 1, "skipped": 1}


def test_the_list_can_be_read() -> None:
    """Each entry names a broker, a test and a reason, and no test is listed twice."""
    listed = known()
    assert all(one.broker in BROKERS and one.tests and one.reason for one in listed)
    named = [(one.broker, test) for one in listed for test in one.tests]
    assert len(named) == len(set(named))


def test_an_entry_may_be_of_some_pools(tmp_path: Path) -> None:
    path = tmp_path / "list.toml"
    path.write_text(
        """
        [[difference]]
        brokers = ["redis"]
        tests = ["all"]
        reason = "r"
        [[difference]]
        brokers = ["redis"]
        pools = ["gevent"]
        tests = ["one"]
        reason = "r"
        """
    )
    assert [one.tests for one in known(path)] == [("all",)]
    assert [one.tests for one in known(path, pool="gevent")] == [("all",), ("one",)]
