"""Private brokers that are there to be harmed: killed, paused, starved, failed over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from repot.brokers.port import Broker


class Ground(Protocol):
    """A broker as an experiment uses it: a lone server, or several that replicate each other.

    Its ports stay the same when its servers are started again. What a `with` undoes
    is gone already, and not missed, if the server was killed and started again meanwhile.

    Every act that harms raises `Inapplicable` on somebody's own broker.
    """

    @property
    def product(self) -> str:
        """What people call it, as in `Server.name`."""

    @property
    def version(self) -> str:
        """The version it states."""

    @property
    def host(self) -> str:
        """Where a proxy finds it: loopback, unless it is somebody's own."""

    @property
    def port(self) -> int:
        """Where clients connect to now: the only server's, or that of the one in charge."""

    @property
    def token(self) -> str:
        """What tells this campaign's queues and tasks from all others on the broker; empty on a private one."""

    def url_at(self, port: int) -> str:
        """Its address behind another loopback port, a proxy's for example."""

    def transport_options(self, name: str) -> dict[str, Any]:
        """What an experiment called `name` adds to its `broker_transport_options`, so that it meets nobody else."""

    def open(self, name: str = "") -> Broker:
        """A connection to look at it, at the server in charge; at what the experiment called `name` sees of it."""

    def clean_up(self, name: str, queues: Iterable[str]) -> None:
        """Remove what the experiment called `name` left, with these queues of its own; what is not there is not missed.

        On a private broker nothing: it ends with the campaign.

        Raises:
            BrokerUnreachable: it did not answer, or refused; something may be left.
            ExperimentFailed: a queue's name is without the token, so that it may be somebody's own.
        """

    def kill(self) -> None:
        """End the server in charge with SIGKILL, and wait until it is gone."""

    def start_again(self, *, wiped: bool = False) -> None:
        """Start what `kill` ended, with its data or without; return once it serves as before.

        Raises:
            Inapplicable: `wiped`, in a cluster, whose nodes do not come back as strangers.
        """

    def paused(self) -> AbstractContextManager[None]:
        """Stop the server in charge (SIGSTOP) for as long as a `with` lasts."""

    def short_of_memory(self) -> AbstractContextManager[None]:
        """Let it refuse what needs memory: RabbitMQ's memory alarm; Redis at `maxmemory` with `noeviction`.

        In force when the `with` begins, and over when it has ended.
        """

    def evicting(self) -> AbstractContextManager[None]:
        """Let it throw data away for want of memory: Redis at `maxmemory` with `allkeys-random`.

        All that it holds at that moment, in every database, and later what is more than a megabyte.

        Raises:
            Inapplicable: RabbitMQ throws nothing away.
        """

    def impatient(self, timeout_s: int) -> AbstractContextManager[None]:
        """Let it take messages back that stay unacknowledged for longer: RabbitMQ's `consumer_timeout`.

        For channels opened afterwards, and checked every second where it is a matter of ticks; not for
        classic queues since 4.3.

        Raises:
            Inapplicable: Redis has no such timeout.
        """

    def giving_up(self, queue: str, deliveries: int) -> AbstractContextManager[None]:
        """Let it drop a message of a queue that was returned more often: a quorum queue's delivery limit, by a policy.

        Raises:
            Inapplicable: Redis counts no deliveries.
        """

    def durable(self) -> AbstractContextManager[None]:
        """Let it keep across `kill` what it has accepted: Redis with an append-only file synced at each write.

        RabbitMQ keeps durable queues and persistent messages anyway.
        """

    def delete_queue(self, queue: str) -> None:
        """Delete a queue with the messages that wait in it."""

    def fail_over(self, queue: str) -> None:
        """Lose the server in charge of a queue until `mend`, and let another take over: `port` is then a living one's.

        What the spares were still to learn they learn before, unless they are `lagging`. A classic queue of
        RabbitMQ is away with its home: no other takes over.

        Raises:
            Inapplicable: a lone server.
        """

    def demote(self, queue: str) -> None:
        """Make a spare of the server in charge, which lives on and refuses to write; `port` is then its heir's.

        Raises:
            Inapplicable: a lone server, or RabbitMQ, whose members pass on what they are asked.
        """

    def lose_spare(self, queue: str) -> None:
        """Lose a server that is not in charge of a queue, with SIGKILL.

        Raises:
            Inapplicable: a lone server.
        """

    def lagging(self) -> AbstractContextManager[None]:
        """Keep the spare servers from learning what the one in charge accepts; `fail_over` within loses it.

        Without a failover they learn it at the end.

        Raises:
            Inapplicable: a lone server, or one that accepts nothing without its spares (a quorum).
        """

    def mend(self) -> None:
        """Start every server that is gone, and make it take part again."""
