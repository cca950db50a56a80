"""One run of a move: who moves, under which token, until when."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from repot.migrate.control import Spent

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Event

#: Called with the queue, what the mover does, and how many of the queue's messages it has moved.
Show: TypeAlias = "Callable[[str, str, int], None]"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a move.

    Attributes:
        holder: the text for this process.
        token: the fencing token of the journal's lease.
        stop: ends the run after the current window.
        progress: called after each window.
    """

    holder: str
    token: str
    stop: Event
    progress: Show
    spent: Spent = field(default_factory=Spent)
