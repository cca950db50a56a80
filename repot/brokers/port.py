"""The broker port: what repot does with a broker, whichever it is. `docs/write-a-broker-adapter.md` has an example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repot.brokers.browse import Browsed, Decide
    from repot.brokers.message import Message
    from repot.brokers.publishing import Receipt


@dataclass(frozen=True, slots=True)
class Depth:
    """The number of messages of a queue: waiting, and delivered but not yet acknowledged.

    Attributes:
        ready: waiting in the queue.
        unacked: held by workers, or reserved for a mover (`repot/brokers/moving.py`).
        oldest_sent_at: when the oldest waiting message was sent, in seconds since 1970 by its sender's clock; None if
            no message waits or the broker cannot tell.
        delayed: held by the broker until they are due, and perhaps this queue's: RabbitMQ keeps those of all queues
            together. On Redis workers hold them, and they count as unacknowledged.
    """

    ready: int
    unacked: int
    oldest_sent_at: float | None = None
    delayed: int = 0

    @property
    def is_drained(self) -> bool:
        """Return whether no message waits, none is held by a worker or reserved, and none is delayed."""
        return self.ready == self.unacked == self.delayed == 0


class Broker(Protocol):
    """A connection to a broker, for one thread. It changes only what its methods are asked to change."""

    #: The product's name: Redis, Valkey or RabbitMQ.
    product: str
    #: The version that the server states.
    version: str
    #: Distinguishes this server from another on the same address: process id or node name.
    identity: str
    #: Maximum age of a count, in seconds: believe "drained" only if it lasts for longer.
    depth_lag_s: float

    def depth(self, queue: str) -> Depth:
        """Count a queue's messages; a queue that is not declared holds none.

        Raises:
            BrokerUnreachable: the broker did not answer, so the count is unknown.
            DepthUnknown: it answered without a count.
        """
        ...

    def browse(self, queue: str, decide: Decide) -> Browsed:
        """Visit the messages that wait in a queue, oldest first; keep, discard or forward each as `decide` returns.

        No message is lost if this process dies: at most one is both forwarded and still in the queue. An exception of
        `decide` ends the visit; the messages not decided on stay. On RabbitMQ no other client sees the messages
        meanwhile.

        Raises:
            Unroutable: there is no queue to forward to.
            BrokerUnreachable: the broker did not answer.
        """
        ...

    def publish(self, queue: str, messages: Sequence[Message]) -> tuple[Receipt, ...]:
        """Send messages to a queue by its name; return one receipt for each, in order.

        A receipt says whether the broker has the message, certainly does not have it, or may have it. Never publish a
        message with an unknown outcome again unless its consumers tolerate duplicates.

        Raises:
            BrokerUnreachable: the broker did not answer, and no message was sent.
        """
        ...

    def close(self) -> None:
        """Close the connections."""
        ...
