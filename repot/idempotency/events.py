"""What guards tell whoever listens: metrics, logs, an audit of your own.

A Celery signal, so that listeners are called in the process of the task::

    @happened.connect
    def told(sender, what, task_id, key, **_): ...

`sender` is the task's name, `what` one of the words below.
"""

from __future__ import annotations

from celery.utils.dispatch import Signal

#: A key was claimed, and the task runs.
CLAIMED = "claimed"
#: The effect had been done: the first result was returned instead of a second run.
PREVENTED = "prevented"
#: Another run held the key, or the store was away: the message will come again.
WAITED = "waited"
#: A run's lease ran out before it ended.
LOST = "lost_leases"
#: A run was found whose outcome nobody knows.
UNKNOWN = "unknown"
#: Such a key was set aside for a person.
PARKED = "parked"
#: A key came again with another payload.
MISMATCHED = "mismatched"
#: The store was away, and the task ran without a claim, by its policy.
UNGUARDED = "unguarded"

EVENTS = (CLAIMED, PREVENTED, WAITED, LOST, UNKNOWN, PARKED, MISMATCHED, UNGUARDED)

happened = Signal(name="repot_idempotency", providing_args=["what", "task_id", "key"])
