"""The brokers that the relay publishes to: the one of the settings, and during a rollout its target."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from repot.brokers import open_configured
from repot.brokers.headers import ROLLOUT_HEADER, RolloutStamp
from repot.brokers.moving import MoveTarget, Outgoing
from repot.brokers.publishing import PublishOutcome, refused
from repot.errors import BrokerUnreachable, SendingStopped
from repot.logs import get_logger
from repot.routing.counters import Counters
from repot.routing.side import Side, side_of
from repot.telemetry.messages import Destination, sending_many
from repot.worker.rollout import followed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from repot.brokers import Broker
    from repot.brokers.message import Message
    from repot.brokers.publishing import Receipt
    from repot.config import BrokerUrl, WorkerSettings
    from repot.outbox.publishing import Sender
    from repot.outbox.store import Row
    from repot.routing.record import RolloutRecord

log = get_logger(__name__)


def open_sender(settings: WorkerSettings, on_wait: Callable[[], None] = lambda: None) -> Sender:
    """Return what publishes to the brokers of the settings; it connects on first use, and belongs to one thread.

    `on_wait` is called about once a second while a broker takes nothing; what it raises ends the wait.
    """
    return RolloutBrokers(settings, on_wait) if settings.rollout else HomeBroker(settings, on_wait)


class HomeBroker:
    """One broker, whatever is sent."""

    def __init__(self, settings: WorkerSettings, on_wait: Callable[[], None], url: BrokerUrl | None = None) -> None:
        """Publish to an address, by default the one that the settings write to.

        `on_wait` is called about once a second while the broker takes nothing; what it raises ends the wait.
        """
        self._settings, self._on_wait, self._url = settings, on_wait, url or settings.write_url
        self._broker: Broker | None = None

    def place_of(self, row: Row) -> str:  # noqa: ARG002 - there is one
        """Return the name of the broker that a message goes to."""
        return ""

    def publish(self, place: str, queue: str, messages: Sequence[Message]) -> Sequence[Receipt]:  # noqa: ARG002
        """Send messages to a queue; return one receipt for each."""
        try:
            if self._broker is None:
                self._broker = open_configured(self._url, self._settings, only_publish=True)
            receipts = self._sent(self._broker, queue, messages)
        except BrokerUnreachable:
            self.close()
            raise
        if messages and not any(one.is_confirmed for one in receipts):
            # perhaps it is no primary any more, and another server has its address
            self.close()
        return receipts

    def _sent(self, broker: Broker, queue: str, messages: Sequence[Message]) -> Sequence[Receipt]:
        """Send; the messages have the traces of the processes that made them."""
        if not messages:
            return broker.publish(queue, messages)
        destination = Destination(broker.product.lower(), queue)
        with sending_many("send", destination, [one.headers for one in messages]):
            if isinstance(broker, MoveTarget):
                return broker.deliver([Outgoing(queue, one) for one in messages], self._on_wait)
            return broker.publish(queue, messages)

    def check(self) -> None:
        """Ask the broker whether it is there."""
        self.publish("", "", [])

    def close(self) -> None:
        """Close the connection."""
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.close()


class RolloutBrokers:
    """Both brokers of a rollout: its record chooses, as for every sender; what the target lacks goes home."""

    def __init__(self, settings: WorkerSettings, on_wait: Callable[[], None] = lambda: None) -> None:
        """Follow the rollout of the settings; `on_wait` as for `open_sender`."""
        self._name = settings.rollout
        self._counters = Counters()
        self._follower = followed(settings, lambda: self._counters)
        self._brokers = {
            Side.SOURCE: HomeBroker(settings, on_wait, settings.broker_url),
            Side.TARGET: HomeBroker(settings, on_wait, settings.rollout_target),
        }
        self._is_refused = False

    @property
    def record(self) -> RolloutRecord | None:
        """The last known record."""
        return self._follower.record()

    def place_of(self, row: Row) -> str:
        """Return the side that a message goes to."""
        record = self.record
        if record is None:
            return Side.SOURCE
        if row.side and not record.gather:
            return row.side
        return side_of(self._name, row.root_id, record.weights.of(row.task, lambda: row.queue))

    def publish(self, place: str, queue: str, messages: Sequence[Message]) -> Sequence[Receipt]:
        """Send messages to a queue of a side; return one receipt for each."""
        side = Side(place)
        try:
            receipts = list(self._published(side, queue, messages))
        except SendingStopped:
            # the target may have them
            raise
        except BrokerUnreachable as error:
            if side is Side.SOURCE:
                raise
            self._note_refusal(error.message)
            return self._fallen_back(queue, messages)
        left = [
            number
            for number, receipt in enumerate(receipts)
            if side is Side.TARGET and receipt.outcome is PublishOutcome.REFUSED
        ]
        if left:
            self._note_refusal(receipts[left[0]].reason)
            try:
                again = self._fallen_back(queue, [messages[number] for number in left])
            except BrokerUnreachable as error:
                # the target has the others, which must not be sent again
                again = [refused(error.message)] * len(left)
            for number, receipt in zip(left, again, strict=True):
                receipts[number] = receipt
        elif side is Side.TARGET:
            self._is_refused = False
        return receipts

    def check(self) -> None:
        """Ask the source whether it is there: without the target, everything goes there."""
        self._brokers[Side.SOURCE].check()

    def close(self) -> None:
        """Close the connections, and follow no more."""
        self._follower.stop()
        for broker in self._brokers.values():
            broker.close()

    def _published(self, side: Side, queue: str, messages: Sequence[Message]) -> Sequence[Receipt]:
        record = self.record
        stamp = str(RolloutStamp(self._name, record.generation if record else 0, side))
        stamped = [replace(one, headers={**one.headers, ROLLOUT_HEADER: stamp}) for one in messages]
        try:
            receipts = self._brokers[side].publish(side, queue, stamped)
        except BrokerUnreachable:
            self._counters.failed(side)
            raise
        for receipt in receipts:
            (self._counters.sent if receipt.is_confirmed else self._counters.failed)(side)
        return receipts

    def _fallen_back(self, queue: str, messages: Sequence[Message]) -> Sequence[Receipt]:
        for _ in messages:
            self._counters.fell_back(Side.TARGET)
        return self._published(Side.SOURCE, queue, messages)

    def _note_refusal(self, why: str) -> None:
        if not self._is_refused:
            text = "the target of the rollout %s takes no message, and they go to the source: %s"
            log.warning(text, self._name, why, extra={"action": "rollout_fallback"})
        self._is_refused = True
