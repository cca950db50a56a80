"""A campaign goes on, and keeps what it has, whatever one of its cases does."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from installed import require
from repot.brokers.local import programs
from repot.chaos.campaign import Plan, run
from repot.chaos.case import Case
from repot.chaos.expectations import cells
from repot.chaos.profiles import PROFILES
from repot.chaos.scenarios import SCENARIOS
from repot.errors import Inapplicable

if TYPE_CHECKING:
    from repot.chaos.result import Campaign, Result, Unmeasured

SCENARIO = "connection-reset"


class Told:
    """What a campaign told."""

    def __init__(self) -> None:
        self.results: list[Result | Unmeasured] = []

    def serves(self, product: str, version: str, url: str) -> None:
        pass

    def step(self, case: Case, text: str) -> None:
        pass

    def result(self, result: Result | Unmeasured) -> None:
        self.results.append(result)
        raise ZeroDivisionError


@pytest.fixture(autouse=True)
def _installed() -> None:
    require(programs.REDIS)
    require(programs.TOXIPROXY)


def known_cases(count: int) -> tuple[Case, ...]:
    """Cases of which the table says something."""
    profile, guard = next(one for one in cells(SCENARIO) if PROFILES[one[0]].broker == "redis")
    return tuple(Case(SCENARIOS[SCENARIO], PROFILES[profile], guard, number) for number in range(1, count + 1))


def on(ground: Any, **more: Any) -> tuple[Campaign, Told]:
    told = Told()
    plan = Plan(known_cases(3), existing={"redis": ground}, **more)
    return run(plan, jobs=2, progress=told), told


class Raising(SimpleNamespace):
    """Says what it is, and raises as soon as an experiment begins with it."""

    error: Exception
    product, version = "Redis", "8.0"

    def __getattr__(self, name: str) -> Any:
        """Raise."""
        raise self.error


def test_what_one_case_raises_is_its_own_failure(caplog: pytest.LogCaptureFixture) -> None:
    found, told = on(Raising(error=ZeroDivisionError("by redis://:word@host/0")))
    assert [1, 2, 3] == [one.number for one in found.unmeasured]
    assert all(one.failed and one.why.startswith("ZeroDivisionError: by redis://") for one in found.unmeasured)
    assert "word" not in str(found.unmeasured)
    assert (3, False) == (len(told.results), found.interrupted)
    assert "failed" in caplog.text


@pytest.mark.parametrize("judged", [True, False])
def test_what_should_mean_something_and_does_not_is_a_failure(judged: bool) -> None:
    found, _ = on(Raising(error=Inapplicable("there is no such thing here")), judged=judged)
    assert [judged] * 3 == [one.failed for one in found.unmeasured]


def test_kept_logs_show_no_address() -> None:
    found, _ = on(Raising(error=Inapplicable("there is no such thing here")))
    for one in found.unmeasured:
        folder = Path(one.why.rpartition(" ")[2])
        assert not list(folder.rglob("*.order"))
