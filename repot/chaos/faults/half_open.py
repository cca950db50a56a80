"""Forget open connections, as a firewall or load balancer does."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.faults.relay_fault import RelayFault
from repot.chaos.instruments.failpoints import Phase
from repot.chaos.scenarios.scenario import BEYOND_TIMEOUTS_S, Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.faults.context import FaultContext


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfOpen(RelayFault):
    """Drop all bytes of the open connections, as a firewall does that has lost its table; new connections work.

    The broker does not notice: RabbitMQ keeps such a connection until heartbeats are missing, Redis for ever.

    Attributes:
        closes_worker_end: whether the worker's end is closed, so the worker reconnects at once.
    """

    closes_worker_end: bool = False

    @property
    def description(self) -> str:
        """Return what the fault does, for reports."""
        closed = "only the worker's end is closed" if self.closes_worker_end else "neither end is closed"
        return f"open connections are forgotten on the way, {closed}; new ones work"

    @contextmanager
    def injected(self, context: FaultContext) -> Iterator[None]:
        """Forget the open connections; close both ends on leaving."""
        with self.relay(context).forgetting(closes_client_end=self.closes_worker_end):
            yield


SCENARIOS = (
    Scenario(
        "half-open",
        "A firewall forgets the worker's connections while the task runs; new ones work",
        "The worker must detect it: by heartbeats on RabbitMQ, by timeouts on Redis, where Celery sets none.",
        HalfOpen(),
        Phase.RUNNING,
        lasts_s=BEYOND_TIMEOUTS_S,
        works_s=1,
    ),
    Scenario(
        "half-closed",
        "The worker's connections break while the task runs, and the broker does not notice",
        "The worker reconnects while the broker keeps its old connection. That connection still owns Celery's "
        "exclusive control queue, and on RabbitMQ the worker exits.",
        HalfOpen(closes_worker_end=True),
        Phase.RUNNING,
        lasts_s=BEYOND_TIMEOUTS_S,
        works_s=1,
    ),
)
