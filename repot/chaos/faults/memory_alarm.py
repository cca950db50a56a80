"""Make the broker short of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.faults.no_preparation import NoPreparation
from repot.chaos.instruments.failpoints import Phase
from repot.chaos.scenarios.scenario import Needs, Scenario
from repot.testbed.test_broker import PrivateTestBroker, capability

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from repot.chaos.faults.context import FaultContext


@dataclass(frozen=True, slots=True)
class MemoryAlarm(NoPreparation):
    """Raise the memory alarm: RabbitMQ blocks connections that publish, Redis refuses commands that write."""

    description: str = "the broker is short of memory and refuses new messages"

    def injected(self, context: FaultContext) -> AbstractContextManager[None]:
        """Keep the broker short of memory until the `with` ends."""
        return capability(context.test_broker, PrivateTestBroker).out_of_memory()


SCENARIOS = (
    Scenario(
        "memory-alarm",
        "The broker is out of memory while the task runs",
        "RabbitMQ serves consumers and blocks producers. Redis refuses every write: an ACK's transaction up to 7, "
        "since then, with BRPOP, the entry in `unacked` of the message that was popped, which is lost.",
        MemoryAlarm(),
        Phase.RUNNING,
        lasts_s=8,
        works_s=1,
        crowded=False,
        needs=Needs.OWN,
    ),
    Scenario(
        "retry-alarm",
        "The broker is out of memory when the task asks to be retried",
        "A retry must publish a message.",
        MemoryAlarm(),
        Phase.RETRY_PUBLISH,
        lasts_s=8,
        retries=1,
        crowded=False,
        needs=Needs.OWN,
    ),
)
