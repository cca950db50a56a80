"""The policy of a guarded task: its key, and what happens after a failure or an unknown outcome."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TYPE_CHECKING

from billiard.exceptions import SoftTimeLimitExceeded

from repot.errors import ConfigInvalid
from repot.idempotency.fingerprint import ARGUMENTS, AllBut, BuiltInKey, Key, Namespace
from repot.waiting import spread

if TYPE_CHECKING:
    from collections.abc import Iterator


class OnUnknown(StrEnum):
    """What to do when an earlier run has an unknown outcome."""

    #: Run again: at least once.
    RERUN = "rerun"
    #: Park the key, and dead-letter the message, until an operator decides: at most once.
    PARK = "park"


class OnStoreDown(StrEnum):
    """What to do when the lease store is unavailable."""

    #: Send the message again, to come later: nothing runs unguarded.
    FAIL_CLOSED = "fail-closed"
    #: Run without a lease: nothing waits for the store.
    FAIL_OPEN = "fail-open"


RERUN, PARK = OnUnknown.RERUN, OnUnknown.PARK
FAIL_CLOSED, FAIL_OPEN = OnStoreDown.FAIL_CLOSED, OnStoreDown.FAIL_OPEN

#: As for WORKER_LEASE.
_MIN_LEASE_S = 0.2

#: After this many doublings every cap is reached; more would overflow a float.
_MAX_DOUBLINGS = 60


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delay before a retry: exponential, with full jitter and a cap. Seconds."""

    base_s: float = 1
    cap_s: float = 60

    def delay_s(self, attempt: int) -> float:
        """Return a random delay of at most `ceiling_s(attempt)`; the first attempt is 0."""
        return spread(0, self.ceiling_s(attempt))

    def ceiling_s(self, attempt: int) -> float:
        """Return the longest possible delay: `base_s` doubled for each earlier attempt, up to `cap_s`."""
        return float(min(self.cap_s, self.base_s * 2 ** min(attempt, _MAX_DOUBLINGS)))


@dataclass(frozen=True, slots=True)
class Policy:
    """Which calls are the same work, and what happens to the second of them.

    Raises:
        ConfigInvalid: a value is invalid; raised when the task is defined, before any message comes.
    """

    #: What the key is made from: ARGUMENTS, TASK_ID, names of arguments, `all_but(...)`, or a function of them.
    key: Key = ARGUMENTS
    #: Separates keys: a tenant, a version of the effect; or a function of the arguments.
    namespace: Namespace = ""
    on_unknown: OnUnknown = RERUN
    #: Unknown outcomes of one key after which it is parked in any case: its runs kill their workers.
    max_unknown_outcomes: int = 3
    on_store_down: OnStoreDown = FAIL_CLOSED
    #: Exceptions that are recorded as permanent failures: later calls with the key fail in the same way. The
    #: task's `permanent` exceptions are added to these.
    keep: tuple[type[BaseException], ...] = ()
    #: Exceptions after which the outcome is unknown.
    uncertain: tuple[type[BaseException], ...] = (SoftTimeLimitExceeded,)
    #: Override WORKER_LEASE and WORKER_IDEMPOTENCY_RETENTION.
    lease_s: float | None = None
    retention_s: float | None = None
    #: Overrides WORKER_RESULT_LIMIT; bytes.
    result_limit: int | None = None
    #: The delay of a message whose key another run holds, or that found the store unavailable.
    wait: Backoff = Backoff(base_s=1, cap_s=60)

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        problems = [*_unless_one_of("on_unknown", self.on_unknown, OnUnknown)]
        problems += [*_unless_one_of("on_store_down", self.on_store_down, OnStoreDown)]
        problems += [*_key_problems(self.key), *_number_problems(self)]
        for name in ("keep", "uncertain"):
            classes = getattr(self, name)
            if not isinstance(classes, tuple) or not all(isinstance(one, type) for one in classes):
                problems.append(f"{name} must be a tuple of exception classes, as in (TimeoutError,)")
        if not isinstance(self.namespace, str) and (
            not callable(self.namespace) or inspect.iscoroutinefunction(self.namespace)
        ):
            problems.append("namespace must be a string, or a function of the task's arguments")
        if problems:
            message = "the policy of a guarded task is invalid: " + "; ".join(problems)
            raise ConfigInvalid(message, hint="docs/idempotency.md describes the fields.")

    def __set_name__(self, owner: type, name: str) -> None:
        """Refuse a policy on a task class that ignores it.

        Python calls this when a class is created, and `@app.task` creates one for each function; up to Python 3.11 it
        wraps the error in a RuntimeError.
        """
        from celery import Task

        if name == "idempotency" and issubclass(owner, Task) and not hasattr(owner, "ensure_lease_held"):
            from repot.idempotency.definition import task_location

            message = (
                f"the task {task_location(owner)} has a policy that nothing follows: its class is not an IdempotentTask"
            )
            raise ConfigInvalid(message, hint="Write @app.task(base=IdempotentTask, idempotency=Policy(...)).")


def _unless_one_of(name: str, value: object, choices: type[Enum]) -> Iterator[str]:
    if not isinstance(value, choices):
        names = " or ".join(one.name for one in choices)
        yield f"{name} must be {names} of repot.idempotency, not {value!r}"


def _key_problems(key: object) -> Iterator[str]:
    if inspect.iscoroutinefunction(key):
        yield "key must be an ordinary function, not async def"
        return
    if isinstance(key, BuiltInKey | AllBut) or callable(key):
        return
    if not isinstance(key, tuple) or not key or not all(isinstance(one, str) and one for one in key):
        yield f"key must be ARGUMENTS, TASK_ID, all_but(...), a function, or names as in ('order',), not {key!r}"


def _number_problems(policy: Policy) -> Iterator[str]:
    if policy.max_unknown_outcomes < 1:
        yield "max_unknown_outcomes must be at least 1"
    if policy.lease_s is not None and policy.lease_s < _MIN_LEASE_S:
        yield f"lease_s must be at least {_MIN_LEASE_S} s"
    if policy.retention_s is not None and policy.retention_s <= 0:
        yield "retention_s must be more than 0"
    if policy.result_limit is not None and policy.result_limit < 0:
        yield "result_limit must not be negative"
