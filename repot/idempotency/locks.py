"""Looking after claims by hand: which there are, what is stuck, and what a person knows of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.errors import AlreadyRunning, ClaimNotFound, LeaseLost
from repot.idempotency.claims import Ending, Outcome, Record, State, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from repot.idempotency.store import RedisStore

#: What a person can say of a claim.
DECISIONS = {
    "done": Outcome.DONE,
    "failed": Outcome.FAILED,
    "run-again": Outcome.RELEASED,
}

#: A key in full; shorter texts are beginnings.
_FULL = 64


@dataclass(frozen=True, slots=True)
class Filters:
    """Which claims are meant: all that fit every one that is given."""

    states: frozenset[State] = frozenset()
    task: str = ""
    stuck: bool = False
    #: Seconds since the run began.
    older_than_s: float = 0

    def fits(self, record: Record, now: float) -> bool:
        """Whether a claim is meant; `now` by the store's clock."""
        return (
            (not self.states or record.state in self.states)
            and (not self.task or self.task in (record.task, record.task_id))
            and (not self.stuck or record.is_stuck)
            and now - record.began >= self.older_than_s
        )


def find(store: RedisStore, filters: Filters) -> Iterator[Record]:
    """The claims that are meant, in no order.

    Raises:
        StoreUnreachable: the store did not answer, or not to the end.
    """
    now = store.now()
    yield from (record for record in store.records() if filters.fits(record, now))


def named(store: RedisStore, name: str) -> Record:
    """The claim with this key, a beginning of it, or the id of its task.

    Raises:
        ClaimNotFound: there is none, or several begin so.
    """
    if len(name) == _FULL and (record := store.inspect(name)):
        return record
    found = [one for one in store.records() if name == one.task_id or (len(name) >= 4 and one.key.startswith(name))]  # noqa: PLR2004 - fewer characters name nothing
    if len(found) > 1:
        message = f"{len(found)} claims fit {name!r}"
        raise ClaimNotFound(message, hint="Give more of the key; `repot locks list --json` has them in full.")
    if not found:
        message = f"there is no claim {name!r}: nobody made it, or it is forgotten (WORKER_LEASE_KEPT)"
        raise ClaimNotFound(message, hint="`repot locks list` shows them; WORKER_LEASE_STORE says where they are.")
    return found[0]


def release(store: RedisStore, record: Record, decision: str, *, kept_s: float, force: bool = False) -> None:
    """Say of a claim what became of its run, or that it may run again.

    Raises:
        AlreadyRunning: its lease is live, and not `force`.
        LeaseLost: it has changed since it was looked at.
    """
    how = "force" if force else "person"
    told = "" if decision == "done" else "said so by hand"
    verdict = store.finish(record.key, record.owner, Ending(DECISIONS[decision], kept_s, error=told), how)
    if verdict is Verdict.LIVE:
        message = f"task {record.task_id} is running under this claim on {record.worker or 'some worker'}"
        raise AlreadyRunning(message, hint="Wait until its lease runs out; --force takes the key from a live run.")
    if verdict is not Verdict.OK:
        message = f"the claim of task {record.task_id} has changed meanwhile, or had ended already"
        raise LeaseLost(message, hint="`repot locks show` tells what it is now.")


def reap(store: RedisStore, records: Iterable[Record], decision: str, *, kept_s: float) -> tuple[list[Record], int]:
    """Decide on what is stuck: those it was said of, and how many had changed meanwhile and were left alone.

    A live lease is never touched: the store looks at its own clock in the step that
    changes the record.
    """
    reaped, left = [], 0
    for record in records:
        try:
            release(store, record, decision, kept_s=kept_s)
        except (AlreadyRunning, LeaseLost):
            left += 1
        else:
            reaped.append(record)
    return reaped, left
