"""Delete the queue."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.faults.no_preparation import NoPreparation
from repot.chaos.instruments.failpoints import Phase
from repot.chaos.scenarios.scenario import Needs, Scenario
from repot.testbed.test_broker import PrivateTestBroker, capability

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.faults.context import FaultContext


@dataclass(frozen=True, slots=True)
class QueueDeleted(NoPreparation):
    """Delete the queue of the task under test with its messages. Only a client that declares it creates it again."""

    description: str = "the queue is deleted"

    @contextmanager
    def injected(self, context: FaultContext) -> Iterator[None]:
        """Delete the queue once; nothing restores its messages."""
        capability(context.test_broker, PrivateTestBroker).delete_queue(context.queue)
        yield


SCENARIOS = (
    Scenario(
        "queue-deleted",
        "The queue is deleted while the task runs and another waits",
        "Queued tasks are lost, on any broker.",
        QueueDeleted(),
        Phase.RUNNING,
        lasts_s=2,
        works_s=1,
        needs=Needs.OWN,
    ),
)
