"""Kill the broker and start it again."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.instruments.failpoints import Phase
from repot.chaos.scenarios.scenario import Needs, Scenario
from repot.testbed.test_broker import PrivateTestBroker, capability

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.faults.context import FaultContext


@dataclass(frozen=True, slots=True)
class BrokerKilled:
    """Kill the broker with SIGKILL; start it again when the `with` ends.

    Attributes:
        keeps_data: whether it keeps its data. Redis is set to sync each write; RabbitMQ does so by default.
    """

    keeps_data: bool = True

    @property
    def description(self) -> str:
        """Return what the fault does, for reports."""
        return f"the broker is killed and restarted with{'' if self.keeps_data else 'out'} its data"

    def prepared(self, context: FaultContext) -> AbstractContextManager[None]:
        """Make the broker durable if `keeps_data`."""
        return capability(context.test_broker, PrivateTestBroker).durable() if self.keeps_data else nullcontext()

    @contextmanager
    def injected(self, context: FaultContext) -> Iterator[None]:
        """Kill the broker; start it again on leaving."""
        capability(context.test_broker, PrivateTestBroker).kill()
        try:
            yield
        finally:
            capability(context.test_broker, PrivateTestBroker).start_again(wiped=not self.keeps_data)


SCENARIOS = (
    Scenario(
        "broker-killed",
        "The broker is killed while the task runs, and restarts with its data",
        "Accepted messages are still there; the running task may run again.",
        BrokerKilled(keeps_data=True),
        Phase.RUNNING,
        lasts_s=3,
        works_s=1,
        needs=Needs.OWN,
        any_instant=True,
    ),
    Scenario(
        "broker-wiped",
        "The broker is killed while the task runs, and restarts empty",
        "Queued tasks are lost.",
        BrokerKilled(keeps_data=False),
        Phase.RUNNING,
        lasts_s=3,
        works_s=1,
        needs=Needs.OWN,
    ),
)
