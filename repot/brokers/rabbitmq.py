"""Looking at a RabbitMQ that serves as a Celery broker, by its management API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repot.brokers.management import ManagementApi, default_management_url, segment
from repot.brokers.port import Depth
from repot.config.endpoints import endpoints
from repot.errors import BrokerUnreachable, DepthUnknown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from repot.config import BrokerUrl

#: RabbitMQ counts messages at each tick, and the API at each tick of its own: 5 s both.
DEFAULT_DEPTH_LAG_S = 10.0


class RabbitBroker:
    """The `Broker` port on RabbitMQ."""

    product = "RabbitMQ"

    def __init__(
        self,
        url: BrokerUrl,
        management_url: str,
        depth_lag_s: float,
        *,
        tls: Mapping[str, Any] | None = None,
        timeout_s: float = 5,
    ) -> None:
        """Ask the management API at `management_url` with the user of `url`; without one, where it usually listens.

        Raises:
            BrokerUnreachable: it does not answer.
        """
        server = endpoints(url.reveal())[0]
        address = management_url or default_management_url(server, encrypted=server.is_encrypted)
        self._api = ManagementApi(
            address, server.user or "guest", server.password or "guest", tls=tls, timeout_s=timeout_s
        )
        self._vhost = server.path or "/"
        self.depth_lag_s = depth_lag_s
        overview = self._api.get("/api/overview")
        if overview is None:
            message = f"{self._api.address} is not RabbitMQ's management API"
            raise BrokerUnreachable(message)
        # any user with a tag may ask for policies; asking for the virtual host itself takes an administrator
        if self._api.get(f"/api/policies/{segment(self._vhost)}") is None:
            # its queues would all be "not found", which reads as empty
            message = f"RabbitMQ at {self._api.address} has no virtual host {self._vhost!r}"
            raise BrokerUnreachable(message, hint="The path of the address names it: amqp://host:5672/vhost.")
        self.version = str(overview["rabbitmq_version"])
        self.identity = str(overview["node"])

    def depth(self, queue: str) -> Depth:
        """Read a queue's counts; they are as old as the broker's statistics."""
        found = self._api.get(f"/api/queues/{segment(self._vhost)}/{segment(queue)}")
        if found is None:
            return Depth(ready=0, unacked=0)
        try:
            # of classic queues alone, and 0 or absent for a message without its time of sending
            oldest = found.get("head_message_timestamp") if found["messages_ready"] else None
            return Depth(found["messages_ready"], found["messages_unacknowledged"], float(oldest) if oldest else None)
        except KeyError as error:
            message = f"RabbitMQ has not counted the messages of {queue!r} yet"
            raise DepthUnknown(message, hint="Its statistics appear some seconds after the queue.") from error

    def close(self) -> None:
        """Nothing to close: each question is a request of its own."""
