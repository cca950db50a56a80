"""Kill a replica."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.faults.no_preparation import NoPreparation
from repot.chaos.instruments.failpoints import Phase
from repot.chaos.scenarios.scenario import Needs, Scenario
from repot.testbed.test_broker import PrivateTestBroker, Replicated, capability

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.faults.context import FaultContext


@dataclass(frozen=True, slots=True)
class ReplicaKilled(NoPreparation):
    """Kill a replica of Redis, or a node of RabbitMQ that does not lead the queue."""

    description: str = "a replica of the broker is killed"

    @contextmanager
    def injected(self, context: FaultContext) -> Iterator[None]:
        """Kill the replica; start it again on leaving."""
        try:
            capability(context.test_broker, Replicated).lose_replica(context.queue)
            yield
        finally:
            capability(context.test_broker, PrivateTestBroker).restore()


SCENARIOS = (
    Scenario(
        "replica-killed",
        "A replica, or a node that does not lead the queue, is killed",
        "It has no effect on the task.",
        ReplicaKilled(),
        Phase.RUNNING,
        lasts_s=4,
        works_s=1,
        needs=Needs.REPLICATED,
    ),
)
