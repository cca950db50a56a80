"""Publish a window of the outbox: in order for each key, with the broker's word for each message."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import time
from typing import TYPE_CHECKING, Protocol

from repot.brokers.message import from_redis
from repot.brokers.publishing import PublishOutcome
from repot.outbox.store import Failure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from repot.brokers.message import Message
    from repot.brokers.publishing import Receipt
    from repot.outbox.store import Row

#: Seconds until the next attempt: twice as long after each failure, up to the longest.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 10.0


class Sender(Protocol):
    """What publishes to the brokers of the settings."""

    def place_of(self, row: Row) -> str:
        """Return the name of the broker that a message goes to."""
        ...

    def publish(self, place: str, queue: str, messages: Sequence[Message]) -> Sequence[Receipt]:
        """Send messages to a queue of a broker; return one receipt for each.

        Raises:
            BrokerUnreachable: it did not answer, and no message was sent.
        """
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


@dataclass(slots=True)
class Outcome:
    """What became of a window's messages, by their rows' ids; those in neither were not tried."""

    published: list[int]
    failed: dict[int, Failure]


def publish(sender: Sender, window: Sequence[tuple[Row, str]], outcome: Outcome) -> None:
    """Publish a window; `outcome` is continuously updated, so it is correct also when this raises.

    Of messages with the same key one is published at a time: the next one only after the broker has the one before.

    Raises:
        BrokerUnreachable: a broker did not answer; what was not tried before was not sent.
    """
    for wave in _waves(window):
        blocked = {row.order_key for row, _ in window if row.id in outcome.failed} - {None}
        places: dict[tuple[str, str], list[tuple[Row, Message]]] = {}
        for row, envelope in wave:
            if row.order_key in blocked or (message := _read(row, envelope, outcome)) is None:
                continue
            places.setdefault((sender.place_of(row), row.queue), []).append((row, message))
        for (place, queue), together in places.items():
            receipts = sender.publish(place, queue, [message for _, message in together])
            for (row, _), receipt in zip(together, receipts, strict=True):
                _note(row, receipt, outcome)


def _waves(window: Sequence[tuple[Row, str]]) -> Iterator[list[tuple[Row, str]]]:
    """Yield parts of a window, each with one message of a key at most."""
    left = list(window)
    while left:
        keys: set[str] = set()
        wave: list[tuple[Row, str]] = []
        later: list[tuple[Row, str]] = []
        for row, envelope in left:
            (later if row.order_key is not None and row.order_key in keys else wave).append((row, envelope))
            if row.order_key is not None:
                keys.add(row.order_key)
        yield wave
        left = later


def _read(row: Row, envelope: str, outcome: Outcome) -> Message | None:
    try:
        found = from_redis(envelope)
    except ValueError as error:
        outcome.failed[row.id] = Failure(f"the row cannot be read: {error}", None)
        return None
    # of the moment at which the task was stored: by now too long, and the worker goes by the header `expires`
    properties = {name: value for name, value in found.properties.items() if name != "expiration"}
    return replace(found, properties=properties | {"timestamp": int(time())})


def _note(row: Row, receipt: Receipt, outcome: Outcome) -> None:
    if receipt.outcome is PublishOutcome.CONFIRMED:
        outcome.published.append(row.id)
        return
    pause_s = min(_FIRST_PAUSE_S * 2 ** min(row.attempts, 10), _LONGEST_PAUSE_S)
    outcome.failed[row.id] = Failure(receipt.reason, None if receipt.is_too_large else pause_s)
