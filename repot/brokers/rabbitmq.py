"""Looking at a RabbitMQ that serves as a Celery broker, by its management API."""

from __future__ import annotations

import base64
import json
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from repot.brokers.port import Depth
from repot.errors import BrokerUnreachable, DepthUnknown

if TYPE_CHECKING:
    from repot.config import BrokerUrl

#: RabbitMQ counts messages at each tick, and the API at each tick of its own: 5 s both.
DEFAULT_DEPTH_LAG_S = 10.0

_NOT_FOUND = 404


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
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {token}"}
        self._vhost = unquote(parts.path[1:]) or "/"
        self._address = management_url.rstrip("/")
        self._timeout_s = timeout_s
        self._opener = build_opener(ProxyHandler({}))
        self.depth_lag_s = depth_lag_s
        overview = self._get("/api/overview")
        if overview is None:
            message = f"{self._address} is not RabbitMQ's management API"
            raise BrokerUnreachable(message)
        if self._get(f"/api/vhosts/{quote(self._vhost, safe='')}") is None:
            # its queues would all be "not found", which reads as empty
            message = f"RabbitMQ at {self._address} has no virtual host {self._vhost!r}"
            raise BrokerUnreachable(message, hint="The path of the address names it: amqp://host:5672/vhost.")
        self.version = str(overview["rabbitmq_version"])
        self.identity = str(overview["node"])

    def depth(self, queue: str) -> Depth:
        """Read a queue's counts; they are as old as the broker's statistics."""
        found = self._get(f"/api/queues/{quote(self._vhost, safe='')}/{quote(queue, safe='')}")
        if found is None:
            return Depth(ready=0, unacked=0)
        try:
            return Depth(ready=found["messages_ready"], unacked=found["messages_unacknowledged"])
        except KeyError as error:
            message = f"RabbitMQ has not counted the messages of {queue!r} yet"
            raise DepthUnknown(message, hint="Its statistics appear some seconds after the queue.") from error

    def close(self) -> None:
        """Nothing to close: each question is a request of its own."""

    def _get(self, path: str) -> Any:  # noqa: ANN401 - JSON
        """The answer as JSON; None for what does not exist."""
        request = Request(self._address + path, headers=self._headers)  # noqa: S310 - an http address of our own making
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                return json.load(response)
        except HTTPError as error:
            if error.code == _NOT_FOUND:
                return None
            message = f"RabbitMQ's management API at {self._address} answered {error.code} {error.reason}"
            raise BrokerUnreachable(message, hint="The user needs the tag `management`.") from error
        except (OSError, HTTPException, ValueError) as error:
            message = f"RabbitMQ's management API at {self._address} did not answer: {error}"
            raise BrokerUnreachable(message, hint="Is the plugin rabbitmq_management enabled?") from error
