"""The outcomes and durations that a worker counts for each task; needs no Celery, as probes and sidecars import it."""

from __future__ import annotations

from enum import StrEnum
from math import ceil, log2


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


class RootUnit(StrEnum):
    """What a rollout's judge compares, by task: each counts once for each root id, however many of its tasks it sent.

    A canary divides by root id, so tasks of one root end alike: forty tasks of a chord with bad input are one
    failure.
    """

    #: First deliveries, and those of them that were delivered before.
    DELIVERED = "delivered"
    REDELIVERED = "redelivered"
    #: First runs that ended, in whichever way, and those that ended in a retry.
    TRIED = "tried"
    RETRIED = "retried"
    #: Tasks that ended for good, and those of them that failed.
    ENDED = "ended"
    FAILED = "failed"
    DEAD_LETTERED = "dead_lettered"
    UNKNOWN_OUTCOME = "unknown_outcome"


#: Before the name of a task that other tasks sent. They are counted apart, as a root may send some of its own name.
SENT = ">"

#: Buckets for each doubling: exponential histograms as OpenTelemetry defines them, at scale 3. A value within a bucket
#: is known to 4.3 %.
BUCKETS_PER_DOUBLING = 8
#: Seconds; shorter durations are in its bucket.
_SHORTEST_S = 1e-4


def bucket_of(seconds: float) -> int:
    """Return the number of the bucket of a duration; its upper bound belongs to it."""
    return ceil(round(log2(max(seconds, _SHORTEST_S)) * BUCKETS_PER_DOUBLING, 9))


def bound_of(bucket: int) -> float:
    """Return the upper bound of a bucket, in seconds."""
    return float(2 ** (bucket / BUCKETS_PER_DOUBLING))
