"""Set the delivery limit of a quorum queue."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.scenarios.scenario import Needs, Scenario
from repot.testbed.test_broker import LimitsDeliveries, capability

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from repot.chaos.faults.context import FaultContext


@dataclass(frozen=True, slots=True)
class DeliveryLimit:
    """Let a quorum queue drop or dead-letter messages that were returned more often; the default is 20 since 4.0."""

    deliveries: int = 3

    @property
    def description(self) -> str:
        """Return what the fault does, for reports."""
        return f"the queue drops or dead-letters a message after {self.deliveries} returns"

    def prepared(self, context: FaultContext) -> AbstractContextManager[None]:
        """Set the limit by a policy, which takes effect at once."""
        return capability(context.test_broker, LimitsDeliveries).delivery_limit(context.queue, self.deliveries)

    def injected(self, context: FaultContext) -> AbstractContextManager[None]:
        """Do nothing: the task under test returns until the limit."""
        del context
        return nullcontext()


SCENARIOS = (
    Scenario(
        "delivery-limit",
        "The task kills every process that runs it, and its queue drops or dead-letters it after three returns",
        "Requeueing the task of a killed process repeats it without a pause, up to the queue's delivery limit. Without"
        " a dead-letter queue it is then dropped silently.",
        DeliveryLimit(),
        None,
        lasts_s=12,
        deadly=True,
        needs=Needs.OWN,
    ),
)
