"""The leases of a move: one for its name, in the journal, and one for each queue, on the source."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from repot.errors import AlreadyMoving
from repot.worker.holder import described, doing, has_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from repot.brokers.journal import Journal, JournalStep, Lines
    from repot.brokers.moving import MoveSource, QueueHold
    from repot.migrate.control import Limits


@dataclass(frozen=True, slots=True)
class LeasedJournal:
    """A move's journal, and this process' lease of it."""

    journal: Journal
    token: str
    lease_s: float

    def step(self, lines: Lines) -> JournalStep:
        """Return the step for a change, to be applied together with a change of the journal's broker."""
        return self.journal.step(self.token, lines)

    def apply(self, lines: Lines) -> dict[str, str]:
        """Apply a change and renew the lease; return what operators asked for.

        Raises:
            LeaseLost: another mover has the lease.
            BrokerUnreachable: the journal's broker did not answer; the change happened, or not.
        """
        return self.journal.apply(self.step(lines), self.lease_s)


def acquire(journal: Journal, holder: str, lease_s: float) -> str:
    """Acquire the lease of a move, also from a mover that is known to have ended; return the fencing token.

    Raises:
        AlreadyMoving: another mover is at work.
    """
    owner = journal.read().get("owner", "")
    with _described():
        return journal.acquire(holder, lease_s, owner if has_ended(owner) else "")


def hold_queue(
    source: MoveSource, queue: str, holder: str, limits: Limits, wait: Callable[[AlreadyMoving], None]
) -> QueueHold:
    """Hold a queue, also one whose mover is known to have ended.

    A mover of the same move has lost that one's lease to this one, and changes nothing any more: it ends with its next
    step, or its hold does with its lease. If this one ended here, neither would go on. `wait` is called about once a
    second meanwhile, and for `patience_s` at the most.

    Raises:
        AlreadyMoving: another mover is at work.
    """
    deadline = monotonic() + limits.patience_s
    while True:
        try:
            return source.hold(queue, holder, limits.lease_s, has_ended)
        except AlreadyMoving as error:
            if doing(error.holder) != doing(holder) or monotonic() >= deadline:
                raise _in_words(error) from error
            wait(error)


@contextmanager
def _described() -> Iterator[None]:
    """Let an error name the other mover in words."""
    try:
        yield
    except AlreadyMoving as error:
        raise _in_words(error) from error


def _in_words(error: AlreadyMoving) -> AlreadyMoving:
    return AlreadyMoving(error.message.replace(error.holder, described(error.holder)), hint=error.hint)
