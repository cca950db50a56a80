"""Message headers that repot adds and several packages read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

#: When the message was replayed, in milliseconds since 1970: the later of two replays has the larger number, also for
#: different messages. Celery carries it through retries, so tasks find it in `request.headers`.
REPLAY_HEADER = "repot_replay"
#: A replayed message says here that it was sent among others: no operator decided that its effect may happen again.
UNDECIDED_HEADER = "repot_replay_undecided"

#: A moved message says here which move sent it, and with which sequence number: `NAME:17`; from a queue with another
#: name than that it was sent to, `NAME:17:QUEUE`.
MOVE_HEADER = "repot_move"
#: The copy of a message that may have been sent before, with the same `MOVE_HEADER`.
MAYBE_TWICE_HEADER = "repot_maybe_twice"

#: A task message that was sent during a rollout says here which one, at which generation of its record (0: none was
#: known), and to which side: `NAME:7:target`.
ROLLOUT_HEADER = "repot_rollout"


#: In a message's properties on Redis: how many workers gave no sign of life any more while they held it. Celery carries
#: headers through retries, and no properties.
DEATHS_PROPERTY = "repot_deaths"


@dataclass(frozen=True, slots=True)
class RolloutStamp:
    """The value of `ROLLOUT_HEADER`."""

    rollout: str
    generation: int
    side: str

    def __str__(self) -> str:
        """Return it as the header has it."""
        return f"{self.rollout}:{self.generation}:{self.side}"

    @classmethod
    def of(cls, headers: Mapping[str, object]) -> RolloutStamp | None:
        """Return the stamp of a message; None if it was not sent during a rollout."""
        rollout, _, rest = str(headers.get(ROLLOUT_HEADER) or "").partition(":")
        generation, _, side = rest.partition(":")
        known = rollout and side and generation.isascii() and generation.isdecimal()
        return cls(rollout, int(generation), side) if known else None


@dataclass(frozen=True, slots=True)
class MoveStamp:
    """The value of `MOVE_HEADER`; `origin` is empty for the queue of the same name."""

    move: str
    number: int
    origin: str = ""

    def __str__(self) -> str:
        """Return it as the header has it."""
        return f"{self.move}:{self.number}" + (f":{self.origin}" if self.origin else "")

    @classmethod
    def of(cls, headers: Mapping[str, object]) -> MoveStamp | None:
        """Return the stamp of a message; None if no move sent it."""
        move, _, rest = str(headers.get(MOVE_HEADER) or "").partition(":")
        number, _, origin = rest.partition(":")
        return cls(move, int(number), origin) if move and number.isascii() and number.isdecimal() else None


def origin(source: str, target: str) -> str:
    """Return what a stamp says of the queue that a message was in."""
    return "" if source == target else source


@dataclass(frozen=True, slots=True)
class MovedBy:
    """What a move brought to a queue from one of its source queues; `origin` as in a stamp."""

    move: str
    origin: str = ""

    def has(self, headers: Mapping[str, object]) -> bool:
        """Return whether a message is one of them."""
        stamp = MoveStamp.of(headers)
        return stamp is not None and (stamp.move, stamp.origin) == (self.move, self.origin)


def instant(stated: object) -> float | None:
    """Return an instant of a header in seconds since 1970; Celery writes ISO 8601, without a zone for UTC."""
    if stated is None:
        return None
    try:
        moment = stated if isinstance(stated, datetime) else datetime.fromisoformat(str(stated))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
