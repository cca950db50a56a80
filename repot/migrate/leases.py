"""The leases of a move: one for its name, in the journal, and one for each queue, on the source."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from repot.errors import AlreadyMoving
from repot.worker.holder import described, has_ended

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.brokers.journal import Journal
    from repot.brokers.moving import MoveSource, QueueHold


def acquire(journal: Journal, holder: str, lease_s: float) -> str:
    """Acquire the lease of a move, also from a mover that is known to have ended; return the fencing token.

    Raises:
        AlreadyMoving: another mover is at work.
    """
    owner = journal.read().get("owner", "")
    with _described():
        return journal.acquire(holder, lease_s, owner if has_ended(owner) else "")


def hold_queue(source: MoveSource, queue: str, holder: str, lease_s: float) -> QueueHold:
    """Hold a queue, also one whose mover is known to have ended.

    Raises:
        AlreadyMoving: another mover is at work.
    """
    with _described():
        return source.hold(queue, holder, lease_s, has_ended)


@contextmanager
def _described() -> Iterator[None]:
    """Let an error name the other mover in words."""
    try:
        yield
    except AlreadyMoving as error:
        raise AlreadyMoving(error.message.replace(error.holder, described(error.holder)), hint=error.hint) from error
