"""A lease store that two releases use."""

from __future__ import annotations

from itertools import cycle, repeat
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize

from repot.idempotency.lease_store import RedisLeaseStore
from repot.idempotency.records import (
    Acquired,
    Done,
    Failed,
    FinishMode,
    FinishResult,
    Mismatch,
    Parked,
    Running,
    State,
)
from support.earlier_release import SCRIPTS
from support.leases import StoreMachine, TimedRedis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.idempotency.fingerprint import Fingerprint
    from repot.idempotency.records import Answer, Ending, LeaseRequest

_ANSWERS: dict[str, Callable[..., Answer]] = {
    "acquired": lambda token, runs, state: Acquired(int(token), int(runs), State(state) if state else None),
    "done": lambda task_id, has_result, result, note: Done(task_id, result if has_result else None, note),
    "failed": Failed,
    "running": lambda ms, task_id, worker: Running(int(ms) / 1000, task_id, worker),
    "parked": lambda task_id, worker, started_at, unknown_outcomes, first: Parked(
        task_id, worker, int(started_at) / 1000, int(unknown_outcomes), bool(first)
    ),
    "mismatch": Mismatch,
}


class MixedLeaseStore(RedisLeaseStore):
    """A store whose steps are those of either release in turn; today's where the rules are others since.

    `turns` says of each step whether the earlier release does it.
    """

    turns: Iterator[bool] = repeat(False)

    def acquire(self, fingerprint: Fingerprint, request: LeaseRequest) -> Answer:
        """Acquire the lease; the earlier release left no expired one to its owner."""
        if not next(self.turns) or request.grace_s:
            return super().acquire(fingerprint, request)
        answer, *more = self._earlier(
            "acquire", fingerprint.key, request.owner, _ms(request.lease_s), _ms(request.retention_s),
            fingerprint.payload, request.task, request.task_id, request.worker, request.replay,
            "1" if request.parks else "", request.max_unknown_outcomes, *request.unanswered,
        )  # fmt: skip
        return _ANSWERS[answer](*more)

    def renew(self, key: str, request: LeaseRequest) -> bool:
        """Extend the lease; the earlier release refused it to the owner of an expired one."""
        record = self.inspect(key)
        if not next(self.turns) or record is None or record.state is State.UNKNOWN:
            return super().renew(key, request)
        return bool(self._earlier("renew", key, request.owner, _ms(request.lease_s), _ms(request.retention_s)))

    def finish(self, key: str, owner: str, ending: Ending, mode: FinishMode = FinishMode.IN_LEASE) -> FinishResult:
        """End a lease."""
        if not next(self.turns):
            return super().finish(key, owner, ending, mode)
        has_result = "" if ending.result is None else "1"
        result, _ = self._earlier(
            "finish", key, owner, ending.outcome.value, _ms(ending.retention_s), has_result, ending.result or "",
            ending.error, _ms(ending.hold_s), ending.held_for, mode.value,
        )  # fmt: skip
        return FinishResult(result)

    def _earlier(self, script: str, key: str, *arguments: Any) -> Any:
        return self._script(SCRIPTS[script])(keys=[self.name_of(key)], args=list(arguments))


class TimedMixed(TimedRedis):
    """That store, with a clock that a test can advance."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.store: MixedLeaseStore = MixedLeaseStore(self.settings)


class MixedMachine(StoreMachine):
    """The same steps and the same model, each step by either release."""

    @initialize(turns=st.lists(st.booleans(), min_size=20, max_size=20))
    def take_turns(self, turns: list[bool]) -> None:
        assert isinstance(self.real, TimedMixed)
        self.real.store.turns = cycle(turns)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
