"""Looking at a RabbitMQ that serves as a Celery broker, by its management API."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from repot.brokers.management import ManagementApi, segment
from repot.brokers.port import Depth
from repot.errors import BrokerUnreachable, DepthUnknown

if TYPE_CHECKING:
    from repot.config import BrokerUrl

#: RabbitMQ counts messages at each tick, and the API at each tick of its own: 5 s both.
DEFAULT_DEPTH_LAG_S = 10.0


class RabbitBroker:
    """The `Broker` port on RabbitMQ."""

    product = "RabbitMQ"

    def __init__(self, url: BrokerUrl, management_url: str, depth_lag_s: float, timeout_s: float = 5) -> None:
        """Ask the management API at `management_url` with the user of `url`.

        Raises:
            BrokerUnreachable: it does not answer.
        """
        parts = urlsplit(url.servers[0])
        user, password = unquote(parts.username or "guest"), unquote(parts.password or "guest")
        self._api = ManagementApi(management_url, user, password, timeout_s=timeout_s)
        self._vhost = unquote(parts.path[1:]) or "/"
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
            return Depth(ready=found["messages_ready"], unacked=found["messages_unacknowledged"])
        except KeyError as error:
            message = f"RabbitMQ has not counted the messages of {queue!r} yet"
            raise DepthUnknown(message, hint="Its statistics appear some seconds after the queue.") from error

    def close(self) -> None:
        """Nothing to close: each question is a request of its own."""
