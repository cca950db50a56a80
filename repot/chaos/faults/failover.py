"""Kill the primary or leader; a replica takes over."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.instruments.failpoints import Phase
from repot.chaos.scenarios.scenario import Needs, Scenario
from repot.testbed.test_broker import PrivateTestBroker, Replicated, ReplicatesAsynchronously, capability

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.faults.context import FaultContext


@dataclass(frozen=True, slots=True)
class Failover:
    """Kill the primary (Redis) or the queue's leader (RabbitMQ); redirect all links to the promoted server.

    So does a load balancer or Sentinel.

    Attributes:
        lagging: whether the promoted replica misses all writes since the workers connected.
    """

    lagging: bool = False

    @property
    def description(self) -> str:
        """Return what the fault does, for reports."""
        return f"the broker fails over to a replica that {'lags behind' if self.lagging else 'is in sync'}"

    def prepared(self, context: FaultContext) -> AbstractContextManager[None]:
        """Stop replication if `lagging`."""
        return capability(context.test_broker, ReplicatesAsynchronously).lagging() if self.lagging else nullcontext()

    @contextmanager
    def injected(self, context: FaultContext) -> Iterator[None]:
        """Fail over and redirect the links for good; start the lost server again as a replica on leaving."""
        try:
            capability(context.test_broker, Replicated).fail_over(context.queue)
            for link in (context.link, context.control_link):
                link.redirect(context.test_broker.port)
            yield
        finally:
            capability(context.test_broker, PrivateTestBroker).restore()


SCENARIOS = (
    Scenario(
        "leader-killed",
        "The primary or the queue's leader is killed, and a replica takes over",
        "A quorum queue continues on another node with all accepted messages; a classic queue is down with its node.",
        Failover(lagging=False),
        Phase.RUNNING,
        lasts_s=8,
        works_s=1,
        needs=Needs.REPLICATED,
    ),
    Scenario(
        "failover-lagging",
        "The primary is killed before it has replicated the task",
        "Redis replicates after it has replied: the messages accepted last are lost.",
        Failover(lagging=True),
        Phase.RUNNING,
        lasts_s=4,
        works_s=1,
        needs=Needs.REPLICATED,
    ),
)
