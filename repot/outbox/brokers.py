"""The brokers that the relay publishes to: the one of the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.brokers import open_configured
from repot.errors import BrokerUnreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repot.brokers import Broker
    from repot.brokers.message import Message
    from repot.brokers.publishing import Receipt
    from repot.config import WorkerSettings
    from repot.outbox.store import Row


class HomeSender:
    """Publishes to the broker of the settings; belongs to one thread."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Connect on first use."""
        self._settings = settings
        self._broker: Broker | None = None

    def place_of(self, row: Row) -> str:  # noqa: ARG002 - there is one
        """Return the name of the broker that a message goes to."""
        return ""

    def publish(self, place: str, queue: str, messages: Sequence[Message]) -> Sequence[Receipt]:  # noqa: ARG002
        """Send messages to a queue; return one receipt for each."""
        try:
            if self._broker is None:
                self._broker = open_configured(self._settings.write_url, self._settings, only_publish=True)
            return self._broker.publish(queue, messages)
        except BrokerUnreachable:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.close()
