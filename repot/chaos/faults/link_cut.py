"""Close a link at both ends."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.faults.link_fault import LinkFault
from repot.chaos.instruments.failpoints import Phase
from repot.chaos.scenarios.scenario import LINK_AWAY_S, Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.faults.context import FaultContext


@dataclass(frozen=True, slots=True)
class LinkCut(LinkFault):
    """Close every connection of the link cleanly, and refuse new ones."""

    @property
    def description(self) -> str:
        """Return what the fault does, for reports."""
        return f"the link to {self.server} is closed at both ends"

    @contextmanager
    def injected(self, context: FaultContext) -> Iterator[None]:
        """Keep the link closed until the `with` ends."""
        with self.link(context).closed():
            yield


SCENARIOS = (
    Scenario(
        "connection-reset",
        "The link is reset while the task runs; reconnecting works at once",
        "RabbitMQ, and Redis with BRPOP, start a second run beside the first within moments. Deduplication of "
        "successes cannot help: nothing has succeeded yet. The guard does. A worker with atomic claims keeps the "
        "message of a task that runs.",
        LinkCut(),
        Phase.RUNNING,
        lasts_s=0,
        unseen=True,
        works_s=4,
        smoke=True,
        any_instant=True,
    ),
    Scenario(
        "link-down",
        "The link is down while the task runs, and for longer than the task",
        "RabbitMQ delivers again at once, beside the first run. On Redis the worker cannot return its task to the "
        "queue: with an atomic claim it is delivered again when the claim's lease has run out, beside the first run "
        "as well; with BRPOP after the visibility timeout.",
        LinkCut(),
        Phase.RUNNING,
        lasts_s=LINK_AWAY_S,
        works_s=4,
        any_instant=True,
    ),
    Scenario(
        "reset-received",
        "The link is reset when the worker has the message but no pool process has it",
        "Both brokers deliver again; the worker forgets the tasks it had reserved, or runs them as well.",
        LinkCut(),
        Phase.RECEIVED,
        lasts_s=0,
    ),
    Scenario(
        "reset-after-ack",
        "The link is reset when all is done and acknowledged",
        "It has no effect on the task.",
        LinkCut(),
        Phase.AFTER_ACK,
        lasts_s=0,
    ),
    Scenario(
        "retry-link-down",
        "The link is down when the task asks to be retried",
        "Celery drops a task whose retry it cannot send, late acks or not; the guarded task keeps its message.",
        LinkCut(),
        Phase.RETRY_PUBLISH,
        lasts_s=4,
        retries=1,
    ),
    Scenario(
        "results-down",
        "The result backend cannot be reached when the result is to be stored",
        "The effect has happened, and Celery counts the task as failed; repot's settings keep it as a dead letter.",
        LinkCut(where="results"),
        Phase.RESULT_STORE,
        lasts_s=5,
    ),
)
