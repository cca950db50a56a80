"""Demote the primary: it keeps running and refuses writes."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.chaos.faults.no_preparation import NoPreparation
from repot.chaos.instruments.failpoints import Phase
from repot.chaos.scenarios.scenario import Needs, Scenario
from repot.testbed.test_broker import ReplicatesAsynchronously, capability

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.chaos.faults.context import FaultContext


@dataclass(frozen=True, slots=True)
class PrimaryDemoted(NoPreparation):
    """Make the primary a read-only replica; the target worker's link still leads to it until the `with` ends.

    This happens with a cached DNS answer, or a load balancer that only checks whether a server answers.
    """

    description: str = "the primary is demoted to a read-only replica, and the worker's link still leads to it"

    @contextmanager
    def injected(self, context: FaultContext) -> Iterator[None]:
        """Redirect the control link to the new primary at once, and the worker's link on leaving."""
        capability(context.test_broker, ReplicatesAsynchronously).demote(context.queue)
        context.control_link.redirect(context.test_broker.port)
        try:
            yield
        finally:
            context.link.redirect(context.test_broker.port)


SCENARIOS = (
    Scenario(
        "primary-demoted",
        "The primary is demoted to a read-only replica",
        "celery/celery#7946: a worker that handles READONLY as an error of one command ends, or fails for as long as "
        "its connection is open.",
        PrimaryDemoted(),
        Phase.RUNNING,
        lasts_s=4,
        works_s=1,
        needs=Needs.REPLICATED,
    ),
)
