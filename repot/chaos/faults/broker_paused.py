"""Pause the broker: its connections stay open, and it does not answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.faults.no_preparation import NoPreparation
from repot.chaos.instruments.failpoints import Phase
from repot.chaos.scenarios.scenario import BEYOND_TIMEOUTS_S, Needs, Scenario
from repot.testbed.test_broker import PrivateTestBroker, capability

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from repot.chaos.faults.context import FaultContext


@dataclass(frozen=True, slots=True)
class BrokerPaused(NoPreparation):
    """Stop every process of the broker (SIGSTOP); the kernel still accepts data for it."""

    description: str = "the broker is paused (SIGSTOP)"

    def injected(self, context: FaultContext) -> AbstractContextManager[None]:
        """Pause the broker until the `with` ends."""
        return capability(context.test_broker, PrivateTestBroker).paused()


SCENARIOS = (
    Scenario(
        "broker-paused",
        "The broker is paused while the task ends, then continues",
        "Connections stay open without replies: a worker without timeouts hangs as long.",
        BrokerPaused(),
        Phase.RUNNING,
        lasts_s=BEYOND_TIMEOUTS_S,
        works_s=8,
        needs=Needs.OWN,
        any_instant=True,
    ),
)
