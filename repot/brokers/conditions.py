"""The conditions under which messages would be moved: a queue's limits, the room a broker has, who uses a queue.

Everything here is read and nothing is changed. What a broker does not say is `Unknown`, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from repot.brokers.facts import Unknown


class Overflow(StrEnum):
    """What a full queue does, by RabbitMQ's names."""

    DROP_HEAD = "drop-head"
    REJECT_PUBLISH = "reject-publish"
    REJECT_PUBLISH_DLX = "reject-publish-dlx"


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The limits of one queue, from its arguments and its policy; None is no limit.

    Attributes:
        max_messages: how many messages may wait.
        max_bytes: how many bytes their bodies may have together.
        used_bytes: how many they have.
        overflow: what happens beyond these limits.
        has_dead_letters: whether what it drops, or what expires there, goes to a dead-letter exchange.
        ttl_s: for how long a message may wait.
        expires_s: after which time without consumers the queue itself is deleted.
        message_bytes: the largest body that the broker takes.
        consumer_timeout_s: for how long a worker may hold a message.
    """

    max_messages: int | None = None
    max_bytes: int | None = None
    used_bytes: int | Unknown = 0
    overflow: Overflow = Overflow.DROP_HEAD
    has_dead_letters: bool = False
    ttl_s: float | None = None
    expires_s: float | None = None
    message_bytes: int | Unknown | None = None
    consumer_timeout_s: float | Unknown | None = None


@dataclass(frozen=True, slots=True)
class Room:
    """The room that a broker has; None where it has no such limit.

    Attributes:
        alarms: why it takes no messages at present.
        disk_free_bytes: free disk of the node that has the least; at `disk_limit_bytes` it stops all publishers.
        memory_limit_bytes: at this limit it takes no messages, or evicts keys.
        eviction: the policy of eviction, by Redis' names; empty if the broker has none.
    """

    alarms: tuple[str, ...] | Unknown = ()
    disk_free_bytes: int | Unknown | None = None
    disk_limit_bytes: int | Unknown | None = None
    memory_used_bytes: int | Unknown | None = None
    memory_limit_bytes: int | Unknown | None = None
    eviction: str | Unknown = ""

    @property
    def evicts_queues(self) -> bool:
        """Return whether the policy may delete a queue's messages when memory is short."""
        return str(self.eviction).startswith("allkeys")


@dataclass(frozen=True, slots=True)
class Traffic:
    """Who reads a queue, and how much is sent to it.

    Attributes:
        consumers: one text for each: its address and names.
        of_any_queue: whether they may read another queue instead; workers that are busy are then not among them.
        sent_per_s: messages that are sent to the queue each second.
        growth_per_s: by how many messages it grows each second; negative while it shrinks.
    """

    consumers: tuple[str, ...] | Unknown
    sent_per_s: float | Unknown
    growth_per_s: float | Unknown
    of_any_queue: bool = False


@dataclass(frozen=True, slots=True)
class QueueUse:
    """What a broker has counted of a queue since it began to count, which may be later than its first message.

    Attributes:
        arrived: messages that were put into it.
        taken: messages that consumers have removed.
        held: messages that consumers hold now.
    """

    arrived: int
    taken: int
    held: int = 0


class Conditions(Protocol):
    """Reads the conditions on one broker.

    A method raises BrokerUnreachable only where the broker itself did not answer; what it refuses to say is `Unknown`.
    """

    def limits(self, queue: str) -> QueueLimits | Unknown:
        """Return the limits of a queue."""
        ...

    def room(self) -> Room:
        """Return the room that the broker has."""
        ...

    def traffic(self, queues: Sequence[str]) -> Mapping[str, Traffic]:
        """Return who uses each queue; this may take a second, whatever their number."""
        ...

    def use(self, queue: str) -> QueueUse | Unknown:
        """Return what has come to a queue and was taken from it; the counts may be as old as its depth."""
        ...

    def by_priority(self, queue: str) -> Mapping[str, int] | Unknown:
        """Return how many messages wait with each priority, in the order in which workers receive them."""
        ...

    def existing(self, queues: Iterable[str]) -> tuple[Sequence[str], Unknown | None]:
        """Return which of these queues exist, and why others may exist that are not seen; None if all are seen.

        Raises:
            BrokerUnreachable: the broker did not answer.
        """
        ...


@runtime_checkable
class HasConditions(Protocol):
    """A broker that says under which conditions messages would be moved."""

    def conditions(self) -> Conditions:
        """Return what reads them."""
        ...
