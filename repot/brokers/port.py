"""What repot asks of a broker, whichever it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from repot.brokers.sweep import Decide, Swept
    from repot.brokers.wire import Requests


@dataclass(frozen=True, slots=True)
class Depth:
    """The messages of a queue: waiting, and delivered but not yet acknowledged.

    `delayed` are those that the broker holds until they are due and that may be the queue's: RabbitMQ keeps those of
    all queues together. On Redis workers hold them, and they are unacknowledged.

    `oldest_sent_at` is when the oldest waiting one was sent, in seconds since 1970 by
    its sender's clock; None if none waits or nobody can tell.
    """

    ready: int
    unacked: int
    oldest_sent_at: float | None = None
    delayed: int = 0

    @property
    def is_drained(self) -> bool:
        """Whether nothing waits, nothing is in a worker's hands, and nothing is still to come."""
        return self.ready == self.unacked == self.delayed == 0


class Broker(Protocol):
    """A connection for looking at a broker. It changes nothing there that it is not asked to."""

    #: What people call it: Redis, Valkey or RabbitMQ.
    product: str
    #: The version the server states.
    version: str
    #: Tells this server from another on the same address: process id or node name.
    identity: str
    #: A count may be this many seconds old: believe "drained" only when it stays so for longer.
    depth_lag_s: float

    def depth(self, queue: str) -> Depth:
        """Count a queue's messages; a queue nobody declared yet holds none.

        Raises:
            BrokerUnreachable: the broker did not answer, so the count is unknown.
            DepthUnknown: it answered without a count.
        """
        ...

    def sweep(self, queue: str, decide: Decide) -> Swept:
        """Go through the messages that wait in a queue, oldest first, and do with each what `decide` says of it.

        Whoever dies in the middle loses none: at most one message is both forwarded and
        still there. What `decide` raises ends the sweep; what was not decided stays. On
        RabbitMQ nobody else sees the messages meanwhile.

        Raises:
            Unroutable: there is no queue to forward to.
            BrokerUnreachable: the broker did not answer.
        """
        ...

    def requests(self) -> Requests:
        """Begin to cut into requests what one client sends to this broker; asks the broker nothing."""
        ...

    def close(self) -> None:
        """Give the connection back."""
        ...
