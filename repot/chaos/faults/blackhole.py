"""Drop bytes silently."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.faults.link_fault import BOTH, FROM, TO, StreamFault, Streams
from repot.chaos.instruments.failpoints import Phase
from repot.chaos.scenarios.scenario import BEYOND_TIMEOUTS_S, Scenario, SendTime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.faults.context import FaultContext


@dataclass(frozen=True, slots=True)
class Blackhole(StreamFault):
    """Drop all bytes in one direction or both; connections stay open.

    Toxiproxy's `timeout` toxic with 0 ms drops bytes until it is removed. Removing it closes the connection.
    """

    streams: Streams = TO

    @property
    def description(self) -> str:
        """Return what the fault does, for reports."""
        return f"bytes {self.way} are dropped"

    @contextmanager
    def injected(self, context: FaultContext) -> Iterator[None]:
        """Drop bytes until the `with` ends."""
        with self.link(context).with_toxic("timeout", self.streams, {"timeout": 0}):
            yield


SCENARIOS = (
    Scenario(
        "dropped-ack",
        "The task is done; its ACK and all later bytes are lost",
        "Both brokers deliver again: Redis after the lease of an atomic claim, or the visibility timeout with BRPOP, "
        "RabbitMQ after 2 to 3 heartbeats. Deduplication of successes keeps the effect single, and so does the guard.",
        Blackhole(),
        Phase.BEFORE_ACK,
        lasts_s=BEYOND_TIMEOUTS_S,
        smoke=True,
    ),
    Scenario(
        "blackhole",
        "Bytes are dropped in both directions while the task runs; connections stay open",
        "Without socket timeouts a Redis worker hangs in its next command and logs nothing.",
        Blackhole(BOTH),
        Phase.RUNNING,
        lasts_s=BEYOND_TIMEOUTS_S,
        works_s=1,
        any_instant=True,
    ),
    Scenario(
        "blackhole-inbound",
        "Bytes from the broker are dropped while the task runs",
        "On RabbitMQ the ACK arrives. On Redis the worker waits for the reply to an earlier command, and its ACK is "
        "too late.",
        Blackhole(FROM),
        Phase.RUNNING,
        lasts_s=BEYOND_TIMEOUTS_S,
        works_s=1,
    ),
    Scenario(
        "lost-in-flight",
        "The link drops the message on its way to the worker, and closes",
        "On Redis no key holds the message between BRPOP and the entry in `unacked`: it is lost, also with late acks. "
        "An atomic claim is written in the step that pops the message, which returns when the claim's lease has run "
        "out.",
        Blackhole(FROM),
        Phase.BEFORE_RECEIVE,
        lasts_s=1,
        sent=SendTime.INTO_THE_FAULT,
        smoke=True,
    ),
    Scenario(
        "publish-blackhole",
        "The producer's link drops all bytes while it sends the task",
        "Without confirms RabbitMQ's client reports a message as sent once it is written to the socket; Redis' client "
        "waits for a reply, for ever without a socket timeout.",
        Blackhole(),
        None,
        lasts_s=2,
        sent=SendTime.OVER_THE_TARGET_LINK,
    ),
)
