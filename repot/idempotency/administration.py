"""List idempotency records, find those with an unknown outcome, and record an operator's decision."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from repot.errors import AlreadyRunning, LeaseLost, RecordNotFound
from repot.idempotency.policy import Policy
from repot.idempotency.records import DECIDED, Ending, FinishMode, FinishResult, Record, RunOutcome, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from repot.idempotency.records import RecordStore


class Decision(StrEnum):
    """What an operator decides about a run."""

    DONE = "done"
    FAILED = "failed"
    RUN_AGAIN = "run-again"


_OUTCOMES = {
    Decision.DONE: RunOutcome.DONE,
    Decision.FAILED: RunOutcome.FAILED,
    Decision.RUN_AGAIN: RunOutcome.RELEASED,
}

#: Characters of a whole key; shorter texts are prefixes.
_KEY_LENGTH = 64
_SHORTEST_PREFIX = 4


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Select records; a record must match every field that is set."""

    states: frozenset[State] = frozenset()
    task: str = ""
    unknown_outcome: bool = False
    #: Seconds since the run started.
    older_than_s: float = 0

    def matches(self, record: Record, now: float) -> bool:
        """Whether a record is selected; `now` by the store's clock."""
        return (
            (not self.states or record.state in self.states)
            and (not self.task or self.task in (record.task, record.task_id))
            and (not self.unknown_outcome or record.has_unknown_outcome)
            and now - record.started_at >= self.older_than_s
        )


def find_records(store: RecordStore, selected: RecordFilter) -> Iterator[Record]:
    """Return the records that match, in no order.

    Raises:
        StoreUnreachable: the store did not answer, or stopped answering.
    """
    now = store.now()
    yield from (record for record in store.records() if selected.matches(record, now))


def find_record(store: RecordStore, name: str) -> Record:
    """Return the record with this key, a prefix of it, or the id of its task.

    Raises:
        RecordNotFound: no record matches, or several do.
    """
    if len(name) == _KEY_LENGTH and (record := store.inspect(name)):
        return record
    found = [
        one
        for one in store.records()
        if name == one.task_id or (len(name) >= _SHORTEST_PREFIX and one.key.startswith(name))
    ]
    if len(found) > 1:
        message = f"{len(found)} idempotency records match {name!r}"
        raise RecordNotFound(message, hint="Give more of the key; `repot leases list --json` shows whole keys.")
    if not found:
        message = f"there is no idempotency record {name!r}, or its retention is over (WORKER_IDEMPOTENCY_RETENTION)"
        raise RecordNotFound(message, hint="`repot leases list` shows all records of WORKER_LEASE_STORE.")
    return found[0]


def policy_of(record: Record, tasks: Mapping[str, Any]) -> Policy | None:
    """Return the policy of a record's task; None if it is not one of these guarded tasks."""
    policy = getattr(tasks.get(record.task), "idempotency", None)
    return policy if isinstance(policy, Policy) else None


def retention_of(record: Record, tasks: Mapping[str, Any], least_s: float) -> float:
    """Return for how many seconds a decision is kept: as the policy of the record's task says, but not for less."""
    policy = policy_of(record, tasks)
    return max(least_s, (policy and policy.retention_s) or 0)


def release(store: RecordStore, record: Record, decision: Decision, *, retention_s: float, force: bool = False) -> None:
    """Record what an operator decided: how the run ended, or that it may run again.

    Raises:
        AlreadyRunning: the lease is live, and `force` is not given.
        LeaseLost: the record has changed since it was read.
    """
    mode = FinishMode.FORCE if force else FinishMode.OPERATOR
    ending = Ending(_OUTCOMES[decision], retention_s, error=DECIDED)
    result = store.finish(record.key, record.owner, ending, mode)
    if result is FinishResult.LIVE:
        message = f"task {record.task_id} is running under this lease on {record.worker or 'an unknown worker'}"
        raise AlreadyRunning(message, hint="Wait until the lease expires; --force takes the key from a live run.")
    if result is not FinishResult.OK:
        message = f"the idempotency record of task {record.task_id} has changed, or had already ended"
        raise LeaseLost(message, hint="`repot leases show` shows its state.")


def reap(
    store: RecordStore, records: Iterable[Record], decision: Decision, *, retention_of: Callable[[Record], float]
) -> tuple[list[Record], int]:
    """Apply a decision to records; return those that it changed, and the number of those that had changed before.

    A live lease is never ended: the store checks its own clock in the step that changes the record.
    """
    reaped, skipped = [], 0
    for record in records:
        try:
            release(store, record, decision, retention_s=retention_of(record))
        except (AlreadyRunning, LeaseLost):
            skipped += 1
        else:
            reaped.append(record)
    return reaped, skipped
