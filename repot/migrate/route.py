"""One queue's way in a move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from repot.brokers.moving import MoveSource, MoveTarget
from repot.errors import MoveRefused
from repot.migrate.identity import task_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from repot.brokers.headers import MovedBy
    from repot.migrate.translate import Translation
    from repot.migrate.window import Entry


#: What is wrong with a message that is to be quarantined, and with the settings.
NOT_KEPT = "what would be quarantined has no place: WORKER_DEAD_LETTER_QUEUE is empty"
KEEP = "Name a dead-letter queue for the move; workers need not use it."


class SourceBroker(MoveSource, MoveTarget, Protocol):
    """A source, which also keeps what the target cannot hold."""


@dataclass(frozen=True, slots=True)
class Route:
    """One queue's way: from where, how, and in which move. What the target cannot hold is sent back to the source.

    Attributes:
        name: of the move.
        queue: the queue that is read.
        account: the queue in the journal: the move's source queue, also when what was moved is given back.
        moved: which messages are read; None for all.
        origin: the queue that their stamps name, unless they stay in one of this name; none if empty.
        system: what traces call the target.
    """

    name: str
    queue: str
    source: SourceBroker
    translation: Translation
    account: str
    moved: MovedBy | None = None
    origin: str = ""
    system: str = ""
    #: Raises MoveRefused where one of these messages must not be moved, or cannot be.
    check: Callable[[Sequence[Entry]], None] = lambda _: None
    #: Asks what `check` will need, while the target confirms the window before; nothing is decided by it.
    look: Callable[[Sequence[Entry]], None] = lambda _: None

    def refuse(self, entries: Sequence[Entry]) -> None:
        """Check that these messages may be moved, or quarantined.

        Raises:
            MoveRefused: one must not be moved, or cannot be kept.
        """
        if lost := next((one for one in entries if not one.has_place), None):
            message = f"{NOT_KEPT}; the message of {task_id(lost.taken.message) or 'no id'} is one of them"
            raise MoveRefused(message, hint=KEEP)
        self.check(entries)
