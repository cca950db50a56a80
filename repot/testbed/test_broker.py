"""What an experiment needs of a broker: the session of every test broker, and the capabilities of some.

A test broker is private, or external: one that the user named, which is used and never harmed. Each fault asks for the
capability that it needs; a broker has the methods it can carry out and no others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, runtime_checkable

from repot.errors import NotApplicable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractContextManager

    from repot.brokers.port import Broker

Capability = TypeVar("Capability")


class TestBroker(Protocol):
    """A broker as an experiment uses it: one server, or several that replicate each other.

    Its ports stay the same when its servers are started again.
    """

    @property
    def product(self) -> str:
        """Return the product's name, as in `Server.name`."""

    @property
    def version(self) -> str:
        """Return the version that it states."""

    @property
    def host(self) -> str:
        """Return where a proxy finds it: loopback, unless it is external."""

    @property
    def port(self) -> int:
        """Return where clients connect now: the only server's port, or the primary's."""

    @property
    def token(self) -> str:
        """Return the text that marks this campaign's queues and tasks on an external broker; empty on a private one."""

    def url_at(self, port: int) -> str:
        """Return its address behind another loopback port, such as a proxy's."""

    def transport_options(self, name: str) -> dict[str, Any]:
        """Return the `broker_transport_options` that separate the experiment called `name` from other clients."""

    def apart(self, name: str, options: Mapping[str, Any]) -> Self:
        """Return this broker with room for the experiment called `name` alone: its queues have any names there.

        `options` are the transport options by which its clients name their keys.

        Raises:
            BrokerUnreachable: it cannot make that room; with what a user has to do.
        """

    def open(self, name: str = "") -> Broker:
        """Connect to the primary, with the transport options of the experiment called `name`."""

    def clean_up(self, name: str, queues: Iterable[str]) -> None:
        """Remove what the experiment called `name` left, with these queues of its own. Missing things are ignored.

        A private broker does nothing: it ends with the campaign.

        Raises:
            BrokerUnreachable: it did not answer, or refused; something may be left.
            ExperimentFailed: a queue's name is without the token, so it may belong to another application.
        """


@runtime_checkable
class Restorable(Protocol):
    """A test broker that can be made as good as new."""

    def restore(self) -> None:
        """Start every server that is not running, and let it rejoin the others."""


@runtime_checkable
class PrivateTestBroker(TestBroker, Restorable, Protocol):
    """A test broker that repot started, and may harm. Leaving a `with` after the server was restarted is no error."""

    def kill(self) -> None:
        """End the primary with SIGKILL, and wait until it is gone."""

    def start_again(self, *, wiped: bool = False) -> None:
        """Start what `kill` ended, with its data or without; return once it serves as before.

        Raises:
            NotApplicable: `wiped` in a cluster, which does not admit a node that lost its data.
        """

    def paused(self) -> AbstractContextManager[None]:
        """Stop the primary's processes (SIGSTOP) for the duration of a `with`."""

    def out_of_memory(self) -> AbstractContextManager[None]:
        """Let it refuse what needs memory: RabbitMQ's memory alarm; Redis at `maxmemory` with `noeviction`.

        In force when the `with` begins, and over when it has ended.
        """

    def durable(self) -> AbstractContextManager[None]:
        """Let it keep what it has accepted across `kill`: Redis with an append-only file synced at each write.

        RabbitMQ keeps durable queues and persistent messages anyway.
        """

    def delete_queue(self, queue: str) -> None:
        """Delete a queue with the messages that wait in it."""


@runtime_checkable
class Evicts(Protocol):
    """Redis: evicts keys when it is out of memory."""

    def evicting(self) -> AbstractContextManager[None]:
        """Evict all keys of every database now, and later whatever exceeds a megabyte: `allkeys-random`."""


@runtime_checkable
class LimitsDeliveries(Protocol):
    """RabbitMQ: limits how long and how often a message is delivered."""

    def consumer_timeout(self, timeout_s: int) -> AbstractContextManager[None]:
        """Let it take back messages that stay unacknowledged for longer: RabbitMQ's `consumer_timeout`.

        It holds for channels opened afterwards; up to 4.2 it is checked every second, and since 4.3 not for classic
        queues.
        """

    def delivery_limit(self, queue: str, deliveries: int) -> AbstractContextManager[None]:
        """Let it drop a message of a quorum queue that was returned more often, by a policy."""


@runtime_checkable
class Replicated(Protocol):
    """Several servers that replicate each other."""

    def fail_over(self, queue: str) -> None:
        """Lose the primary of a queue until `restore`; a replica is promoted, and `port` is a running server's.

        The replicas receive what is outstanding first, unless they are `lagging`. A classic queue of RabbitMQ is
        unavailable while its node is down: no other takes over.
        """

    def lose_replica(self, queue: str) -> None:
        """Kill a server that is not a queue's primary, with SIGKILL."""


@runtime_checkable
class ReplicatesAsynchronously(Replicated, Protocol):
    """Redis: the primary accepts writes that no replica has yet."""

    def demote(self, queue: str) -> None:
        """Make the primary a replica that refuses writes, and promote the other; `port` is then the promoted one's."""

    def lagging(self) -> AbstractContextManager[None]:
        """Stop replication for the duration of a `with`; `fail_over` within loses what the primary accepts.

        Without a failover the replica catches up at the end.
        """


#: Why a broker does not have a capability.
_MISSING: dict[type, str] = {
    PrivateTestBroker: "is an external broker, and no fault is injected into it",
    Evicts: "never evicts a message",
    LimitsDeliveries: "has neither a consumer_timeout nor a delivery limit",
    Replicated: "is a standalone server without a replica",
    ReplicatesAsynchronously: "accepts only what a quorum of its members has, and never demotes a server that runs",
}


def capability(test_broker: TestBroker, wanted: type[Capability]) -> Capability:
    """Return a test broker that has a capability.

    Raises:
        NotApplicable: it does not have it; a fault that needs it cannot be injected.
    """
    if isinstance(test_broker, wanted):
        return test_broker
    protocols = (PrivateTestBroker, *reversed([one for one in wanted.__mro__ if one in _MISSING]))
    missing = next((one for one in protocols if not isinstance(test_broker, one)), wanted)
    message = f"the {test_broker.product} at {test_broker.host}:{test_broker.port} {_MISSING[missing]}"
    hint = "Without its address the experiment starts a private one." if missing is PrivateTestBroker else ""
    raise NotApplicable(message, hint=hint)
