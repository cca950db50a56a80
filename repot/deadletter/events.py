"""What the rest of a worker may want to hear of dead letters."""

from __future__ import annotations

from celery.utils.dispatch import Signal

#: A broker has a letter. The sender is the task's name, empty for what is no task; `reason`, `queue` it came from, and
#: `task_id`. Sent from a thread of its own: receivers must be quick, and what they raise is logged.
buried = Signal(name="repot_buried", providing_args=["reason", "queue", "task_id"])
