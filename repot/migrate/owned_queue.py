"""Which move a queue belongs to, from its first window until nothing of it may be on both brokers.

A second move of the same queue under another name knows nothing of the first one's journal, and would send again,
without a mark, what that has sent and not removed. On a Redis the owner is noted there, and beside the journal
otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from repot.errors import MoveConflict

if TYPE_CHECKING:
    from repot.brokers.journal import Journal


@dataclass(frozen=True, slots=True)
class OwnedQueue:
    """A queue, and where its owner is noted: a field beside a journal."""

    queue: str
    journal: Journal
    field: str

    def take(self, move: str, *, force: bool) -> None:
        """Note that the queue belongs to a move; with `force` also one that belongs to another.

        Raises:
            MoveConflict: it belongs to another move.
            BrokerUnreachable: the owner could not be read.
        """
        owner = self.journal.own(self.field, move)
        if owner in ("", move):
            return
        if not force:
            message = f"the queue {self.queue!r} belongs to the move {owner!r}, which has not ended cleanly"
            hint = (
                f"What it has sent may also be on the source: `repot move resume {owner} --execute` goes on with it, "
                f"`repot move revert {owner} --execute` gives it back. Another move would send it again, unmarked; "
                "if that one's brokers are gone, `start --force` does."
            )
            raise MoveConflict(message, hint=hint)
        self.journal.disown(self.field, owner)
        self.take(move, force=False)

    def leave(self, move: str) -> None:
        """Note that it does not belong to a move any more.

        Raises:
            BrokerUnreachable: the owner could not be changed.
        """
        self.journal.disown(self.field, move)
