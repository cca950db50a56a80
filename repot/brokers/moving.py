"""What a move of a backlog needs of a broker beyond the port: each a small protocol that an adapter may implement.

A move reserves a window of messages on the source broker, writes them to the target broker, and commits them on the
source. Its journal (`repot/brokers/journal.py`) is kept by one of the brokers, which then changes the journal and its
queues in one step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from repot.brokers.journal import Direction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from repot.brokers.headers import MovedBy
    from repot.brokers.journal import Journal, JournalStep
    from repot.brokers.message import Message
    from repot.brokers.publishing import Receipt
    from repot.brokers.reservation import Reservation, TakenMessage


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message, and the queue that it is sent to.

    Attributes:
        delay_s: how long the broker holds it before; 0 for not at all.
    """

    queue: str
    message: Message
    delay_s: int = 0


@dataclass(frozen=True, slots=True)
class QueueTraits:
    """What a translation has to know of a broker's queue.

    Attributes:
        lowest_first: whether priority 0 is handed out first (Redis) or last (RabbitMQ).
        orders: whether the queue orders by priority at all.
        delays: whether the broker holds a message for the queue until it is due.
        max_bytes: the largest body; None if that is unknown.
        limits_headers: whether headers and properties must fit into one frame.
    """

    lowest_first: bool = False
    orders: bool = True
    delays: bool = False
    max_bytes: int | None = None
    limits_headers: bool = False


class Release(Enum):
    """What becomes of a staged message if the move ends before it is moved."""

    #: It goes back into the queue.
    BACK = auto()
    #: The same, with the mark `repot_maybe_twice`: another copy may be elsewhere.
    MARKED = auto()
    #: It is removed: the target has it.
    GONE = auto()


#: A window takes no further message beyond so many bytes: a mover holds two windows, and some copies of one.
WINDOW_BYTES = 32 << 20


class QueueReader(ABC):
    """Reserves one batch of a queue after the other, over one connection."""

    @abstractmethod
    def take(self, limit: int, name: str) -> Reservation:
        """Reserve up to `limit` messages of about `WINDOW_BYTES`, oldest first; empty if none waits.

        `name` is the reservation's. It ends with the reader's lease (on RabbitMQ after up to twice that time) since
        the last `commit` or `keep_alive`, or earlier with the connection; its messages are then in the queue again,
        none lost. What was committed before is confirmed.

        On RabbitMQ any consumer of the queue is given what comes back. While there are others, messages are therefore
        staged first, and come back to the next reader alone, which says `may_run` of them.

        Raises:
            FactUnknown: the name does not belong to a queue.
            BrokerUnreachable: the broker did not answer; what it may have reserved comes back.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back what is received and not committed, and close the connection; raises nothing."""

    def keep_alive(self) -> None:  # noqa: B027 - only some brokers need it
        """Renew the lease of what is reserved while nothing is taken; by default there is nothing to do.

        Raises:
            BrokerUnreachable: the broker did not answer.
        """

    def unstage(self, decide: Callable[[TakenMessage], Release]) -> None:  # noqa: B027 - only some brokers need it
        """Put into the queue again, for its other consumers, what `take` has staged; no reservation may be open.

        `decide` says what becomes of each message. By default nothing is staged.

        Raises:
            BrokerUnreachable, ReservationLost: the rest stays staged for the next reader, as after a death.
        """

    def left(self, prefix: str) -> tuple[str, ...]:  # noqa: ARG002 - only some brokers keep them
        """Return the names, beginning with `prefix`, of reservations that outlived their taker; by default none do."""
        return ()

    def adopt(self, name: str, new_name: str) -> Reservation:
        """Take over a reservation of `left` under a new name; its former taker cannot commit it any more.

        Raises:
            ReservationLost: it has ended.
            BrokerUnreachable: the broker did not answer.
        """
        raise NotImplementedError(name, new_name)


class QueueHold(ABC):
    """The right to move a queue's messages: one holder at a time. It ends with its lease, or its connection."""

    @abstractmethod
    def renew(self) -> None:
        """Extend the lease, or acquire it again if it has ended and no other mover has it.

        Raises:
            LeaseLost, AlreadyMoving: another mover has it.
            BrokerUnreachable: the broker did not answer.
        """

    @abstractmethod
    def release(self) -> None:
        """End it; raises nothing."""


@runtime_checkable
class HasQueueTraits(Protocol):
    """A broker that says what a translation has to know."""

    def traits(self, queue: str) -> QueueTraits:
        """Return the traits of a queue, which need not exist.

        Raises:
            BrokerUnreachable: the broker did not answer.
        """
        ...


@runtime_checkable
class MoveSource(HasQueueTraits, Protocol):
    """A broker whose messages can be moved away."""

    def reader(self, queue: str, *, window: int, lease_s: float, moved: MovedBy | None = None) -> QueueReader:
        """Return a reader of a queue for windows of this size; only of what a move brought, if `moved` says so.

        Raises:
            BrokerUnreachable: the broker did not answer.
        """
        ...

    def scan(self, queue: str, limit: int | None = None) -> Iterator[Message]:
        """Yield the messages that wait in a queue, oldest first, at most `limit`; they stay there.

        On RabbitMQ no other client sees them meanwhile, and they are marked as redelivered afterwards. On Redis one
        that another client takes meanwhile may let the next one be skipped.

        Raises:
            FactUnknown: the name does not belong to a queue.
            BrokerUnreachable: the broker did not answer.
        """
        ...

    def hold(self, queue: str, holder: str, lease_s: float, is_gone: Callable[[str], bool]) -> QueueHold:
        """Hold a queue for one mover; `is_gone` says whether the holder of a live lease is known to have ended.

        Raises:
            AlreadyMoving: another mover holds it.
            BrokerUnreachable: the broker did not answer.
        """
        ...


@runtime_checkable
class InCluster(Protocol):
    """A broker whose nodes have a name together (RabbitMQ); empty if it is not known."""

    cluster_name: str


@runtime_checkable
class HoldsDelayed(Protocol):
    """A broker that holds messages until they are due, outside of their queues (RabbitMQ)."""

    def delayed_reader(
        self, queue: str, *, lease_s: float, moved: MovedBy | None = None, stages: bool = True
    ) -> QueueReader:
        """Return a reader of the messages that are not due yet and will go to a queue; of all, or as for `reader`.

        Without `stages` all that is taken goes back where it was when the reader is closed.

        Raises:
            BrokerUnreachable: the broker did not answer.
        """
        ...


@runtime_checkable
class MoveTarget(HasQueueTraits, Protocol):
    """A broker that messages can be moved to."""

    def deliver(
        self,
        outgoing: Sequence[Outgoing],
        on_wait: Callable[[], None] = lambda: None,
        on_sent: Callable[[], None] = lambda: None,
    ) -> tuple[Receipt, ...]:
        """Send messages to their queues; return one receipt for each, in order.

        `on_wait` is called about once a second while the broker accepts nothing; a TimeoutError that it raises ends the
        wait, as if the broker had not answered. `on_sent` is called when all is sent and not confirmed yet, by a broker
        that confirms later.

        Raises:
            BrokerUnreachable: the broker did not answer, and no message was sent.
        """
        ...

    def prepare(self, queues: Iterable[str]) -> None:
        """Declare quarantine queues that are missing; a broker without declarations does nothing.

        Raises:
            BrokerUnreachable: the broker did not answer, or refuses.
        """
        ...

    def missing(self, queues: Iterable[str]) -> tuple[str, ...]:
        """Return which of these queues are not declared, so that a message to them would have nowhere to go.

        Raises:
            BrokerUnreachable: the broker did not answer.
        """
        ...


@runtime_checkable
class KeepsJournals(Protocol):
    """A broker that keeps a move's journal, and changes journal and queues in one step (Redis)."""

    def journal(self, name: str, prefix: str = "", direction: Direction = Direction.FORTH) -> Journal:
        """Return the journal of a move; it need not exist. `prefix` precedes its key.

        It has an account for each direction, and one lease for both.
        """
        ...

    def deliver_with(self, outgoing: Sequence[Outgoing], step: JournalStep) -> tuple[Receipt, ...]:
        """Send all messages and apply a step of the journal, both or neither.

        Raises:
            LeaseLost: the step's fencing token is not the journal's; nothing was sent.
            BrokerUnreachable: the broker did not answer, and nothing was sent.
        """
        ...


@runtime_checkable
class SettlesWithJournal(Protocol):
    """A reservation on a broker that keeps journals."""

    def settle(self, ids: Iterable[str], step: JournalStep) -> None:
        """Remove these messages, put the others back, and apply a step of the journal: all or nothing.

        Raises:
            ReservationLost: it has ended; nothing was changed.
            LeaseLost: the step's fencing token is not the journal's; nothing was changed.
            BrokerUnreachable: the broker did not answer; all of it happened, or nothing.
        """
        ...
