"""A campaign continues and keeps its results when a case fails."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from repot.chaos.runner.campaign import Plan, run
from repot.chaos.runner.case import Case
from repot.chaos.scenarios.catalogue import SCENARIOS
from repot.chaos.scenarios.expectations import cells
from repot.chaos.scenarios.profiles import PROFILES
from repot.config.broker_kinds import BrokerKind
from repot.errors import NotApplicable
from repot.testbed import executables
from support.installed import require

if TYPE_CHECKING:
    from repot.chaos.report.result import Campaign, Result, Unmeasured

SCENARIO = "connection-reset"


class Recorded:
    """Records the progress of a campaign."""

    def __init__(self) -> None:
        self.results: list[Result | Unmeasured] = []

    def serves(self, product: str, version: str, variable: str, url: str) -> None:
        pass

    def step(self, case: Case, text: str) -> None:
        pass

    def result(self, result: Result | Unmeasured) -> None:
        self.results.append(result)
        raise ZeroDivisionError


@pytest.fixture(autouse=True)
def _installed() -> None:
    require(executables.REDIS)
    require(executables.TOXIPROXY)


def known_cases(count: int) -> tuple[Case, ...]:
    """Return cases with an entry in the table of expectations."""
    profile, guard = next(one for one in cells(SCENARIO) if PROFILES[one[0]].kind is BrokerKind.REDIS)
    return tuple(Case(SCENARIOS[SCENARIO], PROFILES[profile], guard, number) for number in range(1, count + 1))


def on(test_broker: Any, **more: Any) -> tuple[Campaign, Recorded]:
    recorded = Recorded()
    plan = Plan(known_cases(3), external={BrokerKind.REDIS: test_broker}, **more)
    return run(plan, jobs=2, progress=recorded), recorded


class Raising(SimpleNamespace):
    """Has a product and a version, and raises on any other use."""

    error: Exception
    product, version = "Redis", "8.0"

    def __getattr__(self, name: str) -> Any:
        """Raise the error."""
        raise self.error


def test_an_error_in_a_case_fails_that_case_alone(caplog: pytest.LogCaptureFixture) -> None:
    found, recorded = on(Raising(error=ZeroDivisionError("by redis://:word@host/0")))
    assert [one.number for one in found.unmeasured] == [1, 2, 3]
    assert all(one.failed and one.why.startswith("ZeroDivisionError: by redis://") for one in found.unmeasured)
    assert "word" not in str(found.unmeasured)
    assert (len(recorded.results), found.interrupted) == (3, False)
    assert "failed" in caplog.text


@pytest.mark.parametrize("judged", [True, False])
def test_a_case_of_the_table_that_does_not_apply_is_a_failure(judged: bool) -> None:
    found, _ = on(Raising(error=NotApplicable("there is no such thing here")), judged=judged)
    assert [judged] * 3 == [one.failed for one in found.unmeasured]


def test_kept_logs_show_no_address() -> None:
    found, _ = on(Raising(error=NotApplicable("there is no such thing here")))
    for one in found.unmeasured:
        directory = Path(one.why.rpartition(" ")[2])
        assert not list(directory.rglob("*.app"))
