"""Let RabbitMQ's consumer timeout expire."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.instruments.failpoints import Phase
from repot.chaos.scenarios.scenario import Needs, Scenario
from repot.testbed.test_broker import LimitsDeliveries, capability

if TYPE_CHECKING:
    from repot.chaos.faults.context import FaultContext


@dataclass(frozen=True, slots=True)
class ConsumerTimeout:
    """Keep a message unacknowledged for longer than RabbitMQ's `consumer_timeout`.

    Attributes:
        timeout_s: the `consumer_timeout`; RabbitMQ's default is 1800.
    """

    timeout_s: int = 5

    @property
    def description(self) -> str:
        """Return what the fault does, for reports."""
        return f"the broker waits {self.timeout_s} s for an acknowledgement"

    def prepared(self, context: FaultContext) -> AbstractContextManager[None]:
        """Set the timeout. Channels and consumers use the value that was set when they were opened."""
        return capability(context.test_broker, LimitsDeliveries).consumer_timeout(self.timeout_s)

    def injected(self, context: FaultContext) -> AbstractContextManager[None]:
        """Do nothing: the timeout expires while the task runs."""
        del context
        return nullcontext()


SCENARIOS = (
    Scenario(
        "consumer-timeout",
        "RabbitMQ requeues a message that is not acknowledged in time",
        "This is RabbitMQ's visibility timeout, 30 minutes by default: the worker exits, or the task runs twice at a "
        "time.",
        ConsumerTimeout(),
        Phase.RUNNING,
        lasts_s=15,
        works_s=12,
        # the timeout is set from the beginning, and applies to every task that runs for too long
        movable=False,
        needs=Needs.OWN,
    ),
)
