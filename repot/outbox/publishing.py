"""Publish a window of the outbox: in order for each key, with the broker's word for each message."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import time
from typing import TYPE_CHECKING, Protocol

from repot.brokers.message import from_redis
from repot.brokers.publishing import PublishOutcome
from repot.outbox.store import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from repot.brokers.message import Message
    from repot.brokers.publishing import Receipt
    from repot.outbox.store import Row

#: Seconds until the next attempt: twice as long after each failure, up to the longest.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 10.0
#: Refusals in a row after which a queue is left alone for this window.
_PROBES = 3


_Placed = tuple["Row", "Message"]


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

    def check(self) -> None:
        """Ask the broker of the settings whether it is there.

        Raises:
            BrokerUnreachable: it did not answer.
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


def publish(
    sender: Sender, window: Sequence[tuple[Row, str]], outcome: Outcome, goes_on: Callable[[], bool] = lambda: True
) -> None:
    """Publish a window; `outcome` is continuously updated, so it is correct also when this raises.

    Of messages with the same key one is published at a time: the next one only after the broker has the one before.
    One that has failed before is published alone: it may be what lets others fail. Before each step `goes_on` is asked.

    Raises:
        BrokerUnreachable: a broker did not answer; what was not tried before was not sent.
    """
    for wave in _waves(window):
        blocked = {row.order_key for row, _ in window if row.id in outcome.failed} - {None}
        readable = [
            (row, message)
            for row, envelope in wave
            if row.order_key not in blocked and (message := _read(row, envelope, outcome)) is not None
        ]
        for (place, queue), steps in _by_queue(sender, readable).items():
            _publish_steps(sender, place, queue, steps, outcome, goes_on)


def _by_queue(sender: Sender, messages: Sequence[_Placed]) -> dict[tuple[str, str], list[list[_Placed]]]:
    """Return the steps of each queue: the fresh messages together, then each other one."""
    found: dict[tuple[str, str], list[list[_Placed]]] = {}
    for row, message in messages:
        steps = found.setdefault((sender.place_of(row), row.queue), [[]])
        if row.attempts:
            steps.append([(row, message)])
        else:
            steps[0].append((row, message))
    return found


def _publish_steps(
    sender: Sender,
    place: str,
    queue: str,
    steps: Sequence[Sequence[_Placed]],
    outcome: Outcome,
    goes_on: Callable[[], bool],
) -> None:
    refusals = 0
    for step in filter(None, steps):
        if not goes_on():
            return
        if refusals >= _PROBES:
            # the queue takes nothing: the others are not tried, and come back later
            for row, _ in step:
                outcome.failed[row.id] = Failure("others of its queue were refused", _LONGEST_PAUSE_S, counts=False)
            continue
        receipts = sender.publish(place, queue, [message for _, message in step])
        for (row, _), receipt in zip(step, receipts, strict=True):
            _note(row, receipt, outcome)
        refusals = refusals + 1 if all(not one.is_confirmed for one in receipts) else 0


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
    except Exception as error:  # noqa: BLE001 - whatever a planted row lets a decoder raise must not end the relay
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
    outcome.failed[row.id] = Failure(receipt.reason, None if receipt.is_final else pause_s)
