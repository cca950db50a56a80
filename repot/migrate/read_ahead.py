"""Reserve and translate the next window while the target confirms the last one.

Nothing of it is in the journal yet. A mover that dies leaves it like any reservation: on RabbitMQ it is in the queue
again, on Redis the next mover puts it back.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING

from repot.errors import RepotError
from repot.migrate.identity import identity_of
from repot.migrate.window import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from repot.brokers.moving import QueueReader
    from repot.brokers.reservation import Reservation
    from repot.migrate.translate import Translation

#: After so long, as in a pause, lifetimes and delays are calculated again.
_STALE_S = 1.0


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages of one reservation; their entries have no sequence numbers yet."""

    reservation: Reservation
    entries: list[Entry]
    translated_at: float


class ReadAhead:
    """Holds at most one batch ahead."""

    def __init__(self, translation: Translation, look: Callable[[Sequence[Entry]], None]) -> None:
        """Translate what is reserved, and `look` at it; what that raises does not count."""
        self._translation, self._look = translation, look
        self._batch: Batch | None = None
        self._error: RepotError | None = None

    def take(self, reader: QueueReader, limit: int, name: str) -> Batch:
        """Return what was prepared, or reserve up to `limit` messages under this name now.

        Raises:
            RepotError: what `prepare` met.
            BrokerUnreachable: the source did not answer.
        """
        batch, error = self._batch, self._error
        self._batch = self._error = None
        if error is not None:
            raise error
        if batch is None:
            return self._reserve(reader, limit, name)
        if time() - batch.translated_at > _STALE_S:
            return Batch(batch.reservation, self.entries_of(batch.reservation), time())
        return batch

    def prepare(self, reader: QueueReader, limit: int, name: str) -> None:
        """Reserve a batch for the next `take`, which also raises what goes wrong: here confirms are on their way."""
        if self._batch is not None or self._error is not None:
            return
        try:
            batch = self._reserve(reader, limit, name)
        except RepotError as error:
            self._error = error
            return
        with suppress(RepotError):
            self._look(batch.entries)
        # an empty queue is looked at again: more may have come
        self._batch = batch if batch.entries else None

    def keep_alive(self) -> None:
        """Renew the lease of what is prepared.

        Raises:
            BrokerUnreachable: the source did not answer.
            ReservationLost: it has ended.
        """
        if self._batch is not None:
            self._batch.reservation.commit(())

    def give_back(self) -> None:
        """Put what is prepared back into the queue; raises nothing, since it comes back by itself otherwise."""
        batch, self._batch, self._error = self._batch, None, None
        if batch is not None:
            with suppress(RepotError):
                batch.reservation.give_back()

    def _reserve(self, reader: QueueReader, limit: int, name: str) -> Batch:
        reservation = reader.take(limit, name)
        try:
            return Batch(reservation, self.entries_of(reservation), time())
        except BaseException:
            with suppress(RepotError):
                reservation.give_back()
            raise

    def entries_of(self, reservation: Reservation) -> list[Entry]:
        """Return the messages of a reservation, translated for this moment.

        Raises:
            BrokerUnreachable: the target did not say what it needs.
        """
        translate, now = self._translation.translate, time()
        return [Entry(one, identity_of(one.message), translate(one.message, now)) for one in reservation.messages]
