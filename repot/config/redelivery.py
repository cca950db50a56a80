"""How soon each kind of broker delivers the messages of a dead worker again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.config.capabilities import capabilities_of
from repot.config.redis import ATOMIC_CLAIM

if TYPE_CHECKING:
    from repot.config.broker_kinds import BrokerKind
    from repot.config.settings import WorkerSettings

#: kombu's sweep may come up to this many intervals late: another client may hold its lock.
_SWEEPS = 3


def redelivered_within_s(settings: WorkerSettings, kind: BrokerKind | None) -> float:
    """Return after how many seconds a message that a dead worker held has been delivered again, at most.

    With a visibility timeout, after that and the sweep, or after the lease of its claims; else when the broker misses
    the worker's heartbeats (RabbitMQ: two to three).
    """
    if capabilities_of(kind).uses_visibility_timeout:
        silent_s = float(settings.visibility_timeout)
        if settings.redis_claim == ATOMIC_CLAIM:
            silent_s = min(silent_s, settings.redis_claim_lease)
        return float(silent_s + _SWEEPS * settings.restore_interval)
    return 3.0 * settings.heartbeat
