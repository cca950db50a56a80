"""Guard an effect: the idempotency key of a call, the lease of the key, and the task class that holds it."""

from __future__ import annotations

from repot.idempotency.decorator import idempotent_task
from repot.idempotency.fingerprint import ARGUMENTS, TASK_ID, Fingerprint, all_but, fingerprint
from repot.idempotency.function import idempotent
from repot.idempotency.guard import Guard, Lease, guard_of
from repot.idempotency.policy import FAIL_CLOSED, FAIL_OPEN, PARK, RERUN, Backoff, Policy
from repot.idempotency.task import IdempotentTask

__all__ = [
    "ARGUMENTS",
    "FAIL_CLOSED",
    "FAIL_OPEN",
    "PARK",
    "RERUN",
    "TASK_ID",
    "Backoff",
    "Fingerprint",
    "Guard",
    "IdempotentTask",
    "Lease",
    "Policy",
    "all_but",
    "fingerprint",
    "guard_of",
    "idempotent",
    "idempotent_task",
]
