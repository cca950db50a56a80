"""How soon each kind of broker delivers the messages of a dead worker again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.config.capabilities import capabilities_of

if TYPE_CHECKING:
    from repot.config.broker_kinds import BrokerKind
    from repot.config.settings import WorkerSettings

#: kombu's sweep may come up to this many intervals late: another client may hold its lock.
_SWEEPS = 3


def redelivered_within_s(settings: WorkerSettings, kind: BrokerKind | None) -> float:
    """Return after how many seconds a message that a dead worker held has been delivered again, at most.

    With a visibility timeout, after that and the sweep; else when the broker misses the worker's heartbeats
    (RabbitMQ: two to three).
    """
    if capabilities_of(kind).uses_visibility_timeout:
        return float(settings.visibility_timeout + _SWEEPS * settings.restore_interval)
    return 3.0 * settings.heartbeat
