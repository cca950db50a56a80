"""The outcomes and durations that a worker counts for each task; needs no Celery, as probes and sidecars import it."""

from __future__ import annotations

from enum import StrEnum


class TaskOutcome(StrEnum):
    """What a worker counts, by task. The outcomes of guarded tasks are a `GuardEvent` each (`repot.idempotency`)."""

    RECEIVED = "received"
    REDELIVERED = "redelivered"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RETRIED = "retried"
    #: Runs that ended in the first retry of their task: a task that polls is retried many times.
    FIRST_RETRIED = "first_retried"
    #: Of those received, the retries.
    RETRIES_RECEIVED = "retries_received"
    #: Skipped by Celery's own `worker_deduplicate_successful_tasks`.
    DEDUPLICATED = "deduplicated"
    ACQUIRED = "acquired"
    PREVENTED = "prevented"
    WAITED = "waited"
    LEASE_LOST = "lease_lost"
    UNKNOWN_OUTCOME = "unknown_outcome"
    PARKED = "parked"
    MISMATCHED = "mismatched"
    UNGUARDED = "unguarded"
    DEAD_LETTERED = "dead_lettered"


#: The outcomes that a guarded task signals.
GUARD_OUTCOMES = (
    TaskOutcome.ACQUIRED,
    TaskOutcome.PREVENTED,
    TaskOutcome.WAITED,
    TaskOutcome.LEASE_LOST,
    TaskOutcome.UNKNOWN_OUTCOME,
    TaskOutcome.PARKED,
    TaskOutcome.MISMATCHED,
    TaskOutcome.UNGUARDED,
)


class TaskDuration(StrEnum):
    """What a worker measures, by task, in histograms."""

    #: From a task's start to its end.
    RUNTIME = "runtime"
    #: From sending, or from when an ETA was due, to the delivery.
    QUEUE_WAIT = "queue_wait"


#: Upper bounds in seconds; one more bucket counts longer durations. Tasks take from milliseconds to hours; messages
#: say in whole seconds when they were sent.
BUCKETS_S: dict[TaskDuration, tuple[float, ...]] = {
    TaskDuration.RUNTIME: (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 900, 1800, 3600, 7200),
    TaskDuration.QUEUE_WAIT: (1, 5, 15, 60, 300, 900, 1800, 3600, 7200),
}

#: Tasks that were not registered when the worker started are counted under this name.
OTHER = "(other)"
