"""Signal each dead letter that a broker has confirmed."""

from __future__ import annotations

from repot.upstream.signal import Signal

#: The sender is the task's name, "" for a message that is not a task; `reason` is a `Reason`, `queue` the queue the
#: message came from. Sent from a thread of its own: receivers must be quick, and their exceptions are logged.
dead_lettered = Signal(name="repot_dead_lettered", providing_args=["reason", "queue", "task_id"])
