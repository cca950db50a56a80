"""Lose the ACK of one delivery and nothing else."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.faults.relay_fault import RelayFault
from repot.chaos.instruments.failpoints import Phase
from repot.chaos.scenarios.scenario import BEYOND_TIMEOUTS_S, Scenario
from repot.errors import DeadlineExceeded, ExperimentFailed
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.faults.context import FaultContext
    from repot.chaos.runner.relay import LostAck


@dataclass(frozen=True, slots=True, kw_only=True)
class AckCut(RelayFault):
    """Drop the bytes of one ACK; heartbeats, other ACKs and publishes pass.

    On leaving, wait until the ACK has been dropped, then close the worker's connections, as a
    network does that has lost bytes of a stream. Until then RabbitMQ counts the message as
    unacknowledged, and a worker on Redis waits for a reply that never arrives.
    """

    description: str = "the ACK of the task is lost, everything else passes"
    seen_within_s: float = 45

    @contextmanager
    def injected(self, context: FaultContext) -> Iterator[None]:
        """Drop the ACK of the first delivery of the task under test.

        Raises:
            ExperimentFailed: the worker did not send the ACK, or sent one for several deliveries at once.
        """
        with self.relay(context).losing(context.tag()) as ack:
            yield
            self._await_dropped(ack)

    def _await_dropped(self, ack: LostAck) -> None:
        try:
            wait_until(lambda: ack.dropped, within_s=self.seen_within_s, what="the worker sends its ACK")
        except DeadlineExceeded as error:
            joint = f"; it sent {ack.joint} ACKs that each cover several deliveries" if ack.joint else ""
            message = f"the worker did not send the ACK of the task within {self.seen_within_s:g} s{joint}"
            raise ExperimentFailed(message) from error


SCENARIOS = (
    Scenario(
        "ack-cut",
        "The ACK of one delivery is lost, and nothing else",
        "RabbitMQ delivers the task again when the connection ends, not before. On Redis the worker waits for the "
        "reply to its late ACK: for ever, unless there is a socket timeout. With atomic claims it then sends the ACK "
        "again.",
        AckCut(),
        # an early ACK comes next
        Phase.RECEIVED,
        lasts_s=BEYOND_TIMEOUTS_S,
        works_s=0.5,
        movable=False,
    ),
)
