"""Signal what a guard did, for metrics, logs and an audit log of your own.

A Celery signal, sent in the process that runs the task::

    @guard_event.connect
    def record(sender, event, task_id, key, **_): ...

`sender` is the task's name, `event` a `GuardEvent`.
"""

from __future__ import annotations

from enum import StrEnum

from repot.upstream.signal import Signal


class GuardEvent(StrEnum):
    """What a guard did with a message, or found out about its key."""

    #: The run acquired the lease, and starts.
    ACQUIRED = "acquired"
    #: The effect was already done: the caller got the first result instead of a second run.
    PREVENTED = "prevented"
    #: Another run held the key, or the store was unavailable: the message will be delivered again.
    WAITED = "waited"
    #: The lease of a run expired before the run ended.
    LEASE_LOST = "lease_lost"
    #: An earlier run of the key has an unknown outcome.
    UNKNOWN_OUTCOME = "unknown_outcome"
    #: The key was parked for an operator.
    PARKED = "parked"
    #: The key came with another payload.
    MISMATCHED = "mismatched"
    #: The store was unavailable, and the task ran without a lease, by its policy.
    UNGUARDED = "unguarded"


guard_event = Signal(name="repot_guard_event", providing_args=["event", "task_id", "key"])
