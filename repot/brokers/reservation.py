"""Messages that are reserved for one taker until it commits them or gives them back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from repot.errors import BrokerUnreachable, ReservationLost

if TYPE_CHECKING:
    from collections.abc import Iterable

    from repot.brokers.message import Message


@dataclass(frozen=True, slots=True)
class TakenMessage:
    """A reserved message.

    Attributes:
        id: names it within its reservation.
        is_redelivered: the broker marks it as delivered before; neither value proves anything about a run.
        may_run: another consumer of the queue may have been given it as well.
    """

    id: str
    message: Message
    is_redelivered: bool = False
    may_run: bool = False


class Reservation(ABC):
    """A batch of reserved messages, oldest first. As a context manager it gives back, at its end, what is left."""

    def __init__(self, messages: Iterable[TakenMessage]) -> None:
        """Hold these messages."""
        self.messages = tuple(messages)
        self._open = {one.id: one for one in self.messages}
        self._has_ended = False

    def commit(self, ids: Iterable[str]) -> None:
        """Remove messages from the broker for good, and renew the lease; without ids only renew it.

        Raises:
            ReservationLost: the reservation has ended. Messages that were not committed before are in the queue again;
                on RabbitMQ some of `ids` may be gone.
            ValueError: an id is not of this reservation, or its message is committed already.
            BrokerUnreachable: the broker did not answer; the messages are removed, or they come back.
        """
        wanted = list(dict.fromkeys(ids))
        strange = [one for one in wanted if one not in self._open]
        if strange:
            message = f"{strange[0]!r} is not a message that this reservation holds"
            raise ValueError(message)
        if not self._open:
            return
        if self._has_ended:
            raise ReservationLost.of(len(wanted))
        self._commit(wanted)
        for one in wanted:
            del self._open[one]

    def give_back(self) -> None:
        """Put the uncommitted messages back where they were in the queue, and end the reservation.

        Raises:
            BrokerUnreachable: the broker did not answer; the messages come back when the lease ends.
        """
        if not self._has_ended:
            self._has_ended = True
            self._give_back()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Give back what is left; an unreachable broker does not hide the error that ended the block."""
        try:
            self.give_back()
        except BrokerUnreachable:
            if kind is None:
                raise

    @abstractmethod
    def _commit(self, ids: list[str]) -> None:
        """Remove these and renew the lease."""

    @abstractmethod
    def _give_back(self) -> None:
        """Put the rest back, and free what the reservation holds."""
