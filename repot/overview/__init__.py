"""Where a deployment stands: one look at its brokers, workers, leases, moves and rollout. Nothing is changed."""

from __future__ import annotations

from repot.overview.collect import Overview, overview
from repot.overview.deployment import open_deployment
from repot.overview.facts import DeploymentStatus

__all__ = ["DeploymentStatus", "Overview", "open_deployment", "overview"]
