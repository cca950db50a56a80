"""The reasons why a message is in a dead-letter queue."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why a message is dead."""

    FAILED = "failed"
    RETRIES_EXHAUSTED = "retries_exhausted"
    PERMANENT = "permanent"
    WORKER_LOST = "worker_lost"
    TIME_LIMIT = "time_limit"
    UNKNOWN_OUTCOME = "unknown_outcome"
    #: It ran to its end.
    RESULT_NOT_STORED = "result_not_stored"
    UNDECODABLE = "undecodable"
    UNKNOWN_TASK = "unknown_task"
    NOT_A_TASK = "not_a_task"
    #: Also given by RabbitMQ, as are the next three.
    REJECTED = "rejected"
    DELIVERY_LIMIT = "delivery_limit"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    #: A move quarantined it: its body is pickled, or the target cannot hold or express it.
    PICKLED = "pickled"
    TOO_LARGE = "too_large"
    UNSUPPORTED = "unsupported"
    #: The message does not say.
    UNKNOWN = "unknown"


#: Messages that are no task, or no task that this application can decode.
UNREADABLE = (Reason.UNDECODABLE, Reason.NOT_A_TASK)
