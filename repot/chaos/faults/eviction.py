"""Let the broker evict keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.faults.no_preparation import NoPreparation
from repot.chaos.instruments.failpoints import Phase
from repot.chaos.scenarios.scenario import Needs, Scenario
from repot.testbed.test_broker import Evicts, capability

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from repot.chaos.faults.context import FaultContext


@dataclass(frozen=True, slots=True)
class Eviction(NoPreparation):
    """Let Redis evict keys under an `allkeys` policy, queues included. RabbitMQ has no eviction."""

    description: str = "the broker is short of memory and evicts keys"

    def injected(self, context: FaultContext) -> AbstractContextManager[None]:
        """Evict all keys, and keep Redis at its limit until the `with` ends; evicted keys are not restored."""
        return capability(context.test_broker, Evicts).evicting()


SCENARIOS = (
    Scenario(
        "eviction",
        "Redis is out of memory and evicts keys",
        "A queue is a key: all its messages are lost at once, and producers get no error.",
        Eviction(),
        Phase.RUNNING,
        lasts_s=2,
        works_s=1,
        needs=Needs.OWN,
    ),
)
