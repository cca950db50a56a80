"""What a worker counts for each task, by name; needs no Celery, as probes and sidecars import it."""

from __future__ import annotations

RECEIVED, REDELIVERED = "received", "redelivered"
SUCCEEDED, FAILED, RETRIED = "succeeded", "failed", "retried"
#: Skipped by Celery's own `worker_deduplicate_successful_tasks`.
DEDUPLICATED = "deduplicated"

#: What a guarded task signals: the names of `repot.idempotency.events`.
CLAIMED, PREVENTED, WAITED, LOST_LEASES = "claimed", "prevented", "waited", "lost_leases"
UNKNOWN, PARKED, MISMATCHED, UNGUARDED = "unknown", "parked", "mismatched", "unguarded"
GUARDED = (CLAIMED, PREVENTED, WAITED, LOST_LEASES, UNKNOWN, PARKED, MISMATCHED, UNGUARDED)

#: Set aside as a dead letter.
BURIED = "dead_letters"

OUTCOMES = (RECEIVED, REDELIVERED, SUCCEEDED, FAILED, RETRIED, DEDUPLICATED, *GUARDED, BURIED)

#: Histograms: from a task's start to its end, and from sending to the delivery that was due.
RUNTIME, QUEUE_WAIT = "runtime", "queue_wait"

#: Upper bounds in seconds; there is one more bucket for what takes longer. Tasks take from milliseconds to hours;
#: messages say in whole seconds when they were sent.
BUCKETS_S: dict[str, tuple[float, ...]] = {
    RUNTIME: (0.05, 0.25, 1, 5, 15, 60, 300, 900, 1800, 3600, 7200),
    QUEUE_WAIT: (1, 5, 15, 60, 300, 900, 1800, 3600, 7200),
}

#: What is counted for tasks that were not registered when the worker started.
OTHER = "(other)"
