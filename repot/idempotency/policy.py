"""How a guarded task wants to be treated when things go wrong."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from enum import Enum
from random import uniform
from typing import TYPE_CHECKING

from billiard.exceptions import SoftTimeLimitExceeded

from repot.errors import ConfigInvalid
from repot.idempotency.fingerprint import ARGUMENTS, AllBut, Key, Namespace, Whole

if TYPE_CHECKING:
    from collections.abc import Iterator


class OnUnknown(Enum):
    """What to do when nobody knows whether an earlier run had its effect."""

    #: Run again: at least once.
    RERUN = "rerun"
    #: Set it aside as a dead letter until a person decides: at most once.
    PARK = "park"


class OnStoreDown(Enum):
    """What to do when the lease store does not answer."""

    #: Come back later: nothing runs unguarded.
    FAIL_CLOSED = "fail-closed"
    #: Run without a claim: nothing waits for the store.
    FAIL_OPEN = "fail-open"


RERUN, PARK = OnUnknown.RERUN, OnUnknown.PARK
FAIL_CLOSED, FAIL_OPEN = OnStoreDown.FAIL_CLOSED, OnStoreDown.FAIL_OPEN

#: As for WORKER_LEASE.
_SHORTEST_LEASE_S = 0.2

#: Beyond so many doublings any cap is reached, and a float would overflow.
_MOST_DOUBLINGS = 60


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before trying again: exponential, with full jitter and a cap. Seconds."""

    base_s: float = 1
    cap_s: float = 60

    def delay_s(self, attempt: int) -> float:
        """A random time of up to `base_s` doubled for each attempt before, the first being 0."""
        # S311: to spread load, not to keep a secret
        return uniform(0, self.ceiling_s(attempt))  # noqa: S311

    def ceiling_s(self, attempt: int) -> float:
        """The longest that it can be."""
        return float(min(self.cap_s, self.base_s * 2 ** min(attempt, _MOST_DOUBLINGS)))


@dataclass(frozen=True, slots=True)
class Policy:
    """What makes two calls the same work, and what happens to the second.

    Raises:
        ConfigInvalid: a value means nothing here; better when a task is defined than when it is needed.
    """

    #: What the key is made of: ARGUMENTS, TASK_ID, names of arguments, `all_but` some, or a function of them.
    key: Key = ARGUMENTS
    #: Keeps keys apart: a tenant, a version of the effect; or a function of the arguments.
    namespace: Namespace = ""
    on_unknown: OnUnknown = RERUN
    #: Unknown outcomes of one key after which it is set aside in any case: its runs kill their workers.
    most_doubts: int = 3
    on_store_down: OnStoreDown = FAIL_CLOSED
    #: Exceptions after which the key stays taken: whoever comes with it gets the same failure. A task's
    #: `permanent` ones are such, too.
    keep: tuple[type[BaseException], ...] = ()
    #: Exceptions after which nobody knows whether the effect happened.
    uncertain: tuple[type[BaseException], ...] = (SoftTimeLimitExceeded,)
    #: In place of WORKER_LEASE and WORKER_LEASE_KEPT.
    lease_s: float | None = None
    kept_s: float | None = None
    #: In place of WORKER_RESULT_LIMIT, in bytes.
    result_limit: int | None = None
    #: How long a message that found its key taken, or the store away, waits before it comes again.
    wait: Backoff = Backoff(base_s=1, cap_s=60)

    def __post_init__(self) -> None:
        """Refuse what would be taken for something else."""
        problems = [*_unless_one_of("on_unknown", self.on_unknown, OnUnknown)]
        problems += [*_unless_one_of("on_store_down", self.on_store_down, OnStoreDown)]
        problems += [*_key_problems(self.key), *_number_problems(self)]
        for name in ("keep", "uncertain"):
            kinds = getattr(self, name)
            if not isinstance(kinds, tuple) or not all(isinstance(one, type) for one in kinds):
                problems.append(f"{name} is a tuple of exception classes, as in (TimeoutError,)")
        if not isinstance(self.namespace, str) and (
            not callable(self.namespace) or inspect.iscoroutinefunction(self.namespace)
        ):
            problems.append("namespace is a text, or a function of the task's arguments")
        if problems:
            message = "this policy of a guarded task means nothing: " + "; ".join(problems)
            raise ConfigInvalid(message, hint="docs/idempotency.md has what can be said.")

    def __set_name__(self, owner: type, name: str) -> None:
        """Refuse to be the policy of a task that nothing guards.

        Python calls it when a class is made, as `@app.task` makes one of each function; up to 3.11 it wraps the error.
        """
        from celery import Task

        if name == "idempotency" and issubclass(owner, Task) and not hasattr(owner, "still_mine"):
            from repot.idempotency.definition import shown

            message = (
                f"the task {shown(owner)} has a policy and nothing that follows it: its class is no IdempotentTask"
            )
            raise ConfigInvalid(message, hint="Write @app.task(base=IdempotentTask, idempotency=Policy(...)).")


def _unless_one_of(name: str, value: object, kinds: type[Enum]) -> Iterator[str]:
    if not isinstance(value, kinds):
        words = " or ".join(one.name for one in kinds)
        yield f"{name} is {words} of repot.idempotency, not {value!r}"


def _key_problems(key: object) -> Iterator[str]:
    if inspect.iscoroutinefunction(key):
        yield "key is an ordinary function, not async def"
        return
    if isinstance(key, Whole | AllBut) or callable(key):
        return
    if not isinstance(key, tuple) or not key or not all(isinstance(one, str) and one for one in key):
        yield f"key is ARGUMENTS, TASK_ID, all_but(...), a function, or a tuple of names as in ('order',), not {key!r}"


def _number_problems(policy: Policy) -> Iterator[str]:
    if policy.most_doubts < 1:
        yield "most_doubts is at least 1"
    if policy.lease_s is not None and policy.lease_s < _SHORTEST_LEASE_S:
        yield f"lease_s is at least {_SHORTEST_LEASE_S} s"
    if policy.kept_s is not None and policy.kept_s <= 0:
        yield "kept_s is more than 0"
    if policy.result_limit is not None and policy.result_limit < 0:
        yield "result_limit is no negative number"
