"""The journal of a move: what was reserved, delivered, returned and quarantined, kept on a broker or the lease store.

Every change is a step: commands that run together, and only while the fencing token of their sender is the journal's.
Each step keeps, for every queue, `reserved = delivered + returned + quarantined + open`, where `open` are the messages
of the window that is being moved. So the account closes at every instant, whenever the mover dies.

Beside the counts the journal has the identities of three sets of messages, each no larger than a few windows: `open`,
`written` (those of the last windows, which come back if their commit was lost, and must not be sent again), and
`maybe` (those that went back to the queue although they may have been sent).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Windows whose identities are remembered after they were written.
GENERATIONS = 4


class Direction(StrEnum):
    """Which way a move goes; the value precedes the names of its counters."""

    FORTH = ""
    #: What was moved is given back.
    BACK = "back_"


#: Identity of a message -> the sequence numbers it was sent with: more than one for messages that are the same.
Identities = dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class JournalStep:
    """Commands that run together, or not at all if `token` is not the journal's."""

    key: str
    token: str
    commands: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Lines:
    """A change of one queue's part of a journal.

    Attributes:
        queue: the source queue.
        add: to the queue's counters.
        put: values of the queue.
        open: identities of the window that starts; None leaves them.
        written: identities of the window that was written, in place of the open ones; None leaves them.
        generation: which of the remembered windows they replace.
        maybe: identities of messages that went back and may have been sent, in addition.
        known: identities of messages that need not be written: what is read beside `written`, and never replaced.
        forgets: whether `written`, `maybe` and `known` are forgotten first.
        certain: identities that are not among those any more.
        clears_open: whether no window is open any more.
    """

    queue: str
    add: Mapping[str, int] = field(default_factory=dict)
    put: Mapping[str, str] = field(default_factory=dict)
    open: Identities | None = None
    written: Identities | None = None
    generation: int = 0
    maybe: Identities | None = None
    known: Identities | None = None
    forgets: bool = False
    certain: Sequence[str] = ()
    clears_open: bool = False


class Journal(Protocol):
    """One move's journal. Any number of processes read it; one at a time changes its counts.

    `direction` says whose counters, windows and identities are meant.
    """

    direction: Direction

    def read(self) -> dict[str, str]:
        """Return all fields; empty if there is no such journal.

        Raises:
            BrokerUnreachable: its broker did not answer.
        """
        ...

    def now(self) -> float:
        """Return the time of its broker, by which its leases end, in seconds since 1970.

        Raises:
            BrokerUnreachable: its broker did not answer.
        """
        ...

    def create(self, fields: Mapping[str, str]) -> bool:
        """Create it with these fields; return False if it exists, and change nothing.

        Raises:
            BrokerUnreachable: its broker did not answer.
        """
        ...

    def acquire(self, owner: str, lease_s: float, replaced: str = "") -> str:
        """Acquire the lease; return the fencing token, a larger number each time.

        `replaced` is an owner that is known to have ended: its live lease does not count.

        Raises:
            AlreadyMoving: another owner's lease is live.
            BrokerUnreachable: its broker did not answer.
        """
        ...

    def release(self, token: str) -> None:
        """End the lease, unless another owner has it.

        Raises:
            BrokerUnreachable: its broker did not answer.
        """
        ...

    def step(self, token: str, lines: Lines) -> JournalStep:
        """Return the step for a change, to be applied by itself or together with a change of its broker."""
        ...

    def apply(self, step: JournalStep, lease_s: float) -> dict[str, str]:
        """Apply a step and renew the lease; return what operators asked for (`put` of `ask`).

        Raises:
            LeaseLost: another owner has the lease.
            BrokerUnreachable: its broker did not answer; the step happened, or not.
        """
        ...

    def identities(self, queue: str, kind: str) -> Identities:
        """Return the identities of a kind: `open`, `written` or `maybe`.

        Raises:
            BrokerUnreachable: its broker did not answer.
        """
        ...

    def own(self, field: str, move: str) -> str:
        """Note in a field, beside all journals of this place, the move that something belongs to.

        Return the move that it belonged to already; an empty text if it belonged to none.

        Raises:
            BrokerUnreachable: its broker did not answer.
        """
        ...

    def disown(self, field: str, move: str) -> None:
        """Note that it does not belong to this move any more, if it does.

        Raises:
            BrokerUnreachable: its broker did not answer.
        """
        ...

    def ask(self, put: Mapping[str, str], audit: str) -> None:
        """Leave a request of an operator for the mover, with a line for the audit.

        Raises:
            BrokerUnreachable: its broker did not answer.
        """
        ...

    def audit(self) -> list[str]:
        """Return the lines of the audit, oldest first.

        Raises:
            BrokerUnreachable: its broker did not answer.
        """
        ...
