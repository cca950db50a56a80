"""One answer to the question which queues a deployment has."""

from __future__ import annotations

from repot.queues.application import queues_in_routes, queues_in_schedule, queues_of, routed_queue, routes_of
from repot.queues.dead_letters import is_dead_letters, queue_of_dead_letters
from repot.queues.deployment import DeploymentQueues, KnownQueue
from repot.queues.find import find_queues

__all__ = [
    "DeploymentQueues",
    "KnownQueue",
    "find_queues",
    "is_dead_letters",
    "queue_of_dead_letters",
    "queues_in_routes",
    "queues_in_schedule",
    "queues_of",
    "routed_queue",
    "routes_of",
]
