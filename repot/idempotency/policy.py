"""How a guarded task wants to be treated when things go wrong."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import uniform

from billiard.exceptions import SoftTimeLimitExceeded

from repot.idempotency.fingerprint import ARGUMENTS, Key, Namespace


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
    """What makes two calls the same work, and what happens to the second."""

    #: What the key is made of: ARGUMENTS, TASK_ID, names of arguments, or a function of them.
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
