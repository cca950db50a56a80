"""All scenarios: those that the modules in `repot.chaos.faults` declare, and those without a fault."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from repot.chaos import faults
from repot.chaos.instruments.failpoints import Phase
from repot.chaos.scenarios.expectations import scenario_names
from repot.chaos.scenarios.scenario import Scenario

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: The names of two groups: every scenario, and a small selection.
ALL, SMOKE = "all", "smoke"

_WITHOUT_FAULT = (
    Scenario("no-fault", "No fault", "The baseline for all other scenarios.", None, None, smoke=True),
    Scenario(
        "visibility-timeout",
        "No fault: the task runs longer than the visibility timeout",
        "Redis delivers the running task again, unless its worker renews an atomic claim. RabbitMQ's own limit, "
        "consumer_timeout, is 30 minutes unless it is raised.",
        None,
        Phase.RUNNING,
        # longer than the timeout, and finished before a third delivery is due
        works_s=12,
    ),
    Scenario(
        "eta-beyond-timeout",
        "No fault: the task has a countdown longer than the visibility timeout",
        "Redis delivers the waiting task again and again, and every copy runs, unless its worker renews an atomic "
        "claim.",
        None,
        None,
        countdown_s=20,
        # copies on two workers are due at the same instant: neither has finished when the other starts
        works_s=1,
    ),
    Scenario(
        "poison",
        "The task kills every process that runs it",
        "Without a limit it runs for ever; with one it must end as a dead letter, not disappear.",
        None,
        None,
        deadly=True,
    ),
)


def declared() -> Iterator[Scenario]:
    """Yield the scenarios of every module in `repot.chaos.faults`: its `SCENARIOS`, where it has any."""
    for module in iter_modules(faults.__path__):
        yield from getattr(import_module(f"{faults.__name__}.{module.name}"), "SCENARIOS", ())


def _sorted(scenarios: Iterable[Scenario]) -> list[Scenario]:
    """Sort scenarios as `expected.toml` lists them; those that it does not list come last."""
    names = scenario_names()
    return sorted(scenarios, key=lambda one: names.index(one.name) if one.name in names else len(names))


SCENARIOS = {scenario.name: scenario for scenario in _sorted((*_WITHOUT_FAULT, *declared()))}
