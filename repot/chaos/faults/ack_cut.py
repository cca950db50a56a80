"""The ACK of one delivery is lost, and nothing else."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.faults.relayed import Relayed
from repot.errors import DeadlineExceeded, ExperimentFailed
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.place import Place
    from repot.chaos.relay import LostAck


@dataclass(frozen=True, slots=True, kw_only=True)
class AckCut(Relayed):
    """Drop the bytes of one ACK on their way; heartbeats, other ACKs and publishes pass.

    On leaving it waits until that ACK has come by, and then closes the worker's
    connections, as a network does that has lost bytes of a stream. Nobody is told
    before, so on RabbitMQ the message stays with the worker until then; on Redis the
    worker waits for an answer that never comes.
    """

    what: str = "the ACK of the task vanishes, everything else passes"
    seen_within_s: float = 45

    @contextmanager
    def injected(self, place: Place) -> Iterator[None]:
        """Drop the ACK of the subject's first delivery.

        Raises:
            ExperimentFailed: it did not come, or together with others.
        """
        with self.relay(place).losing(place.tag()) as ack:
            yield
            self._await(ack)

    def _await(self, ack: LostAck) -> None:
        try:
            wait_until(lambda: ack.dropped, within_s=self.seen_within_s, what="the ACK that is to vanish")
        except DeadlineExceeded as error:
            joint = f"; {ack.joint} ACKs of several deliveries at once came by" if ack.joint else ""
            message = f"the ACK that is to vanish did not come within {self.seen_within_s:g} s{joint}"
            raise ExperimentFailed(message) from error
