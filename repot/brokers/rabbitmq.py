"""Looking at a RabbitMQ that serves as a Celery broker: by its management API, and at messages themselves by AMQP."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import amqp
from kombu import Connection
from kombu.exceptions import OperationalError

from repot.brokers import rabbitmq_sweep
from repot.brokers.management import ManagementApi, default_management_url, segment
from repot.brokers.port import Depth
from repot.brokers.rabbitmq_delayed import delayed_for
from repot.brokers.rabbitmq_wire import AmqpRequests
from repot.brokers.refusals import no_answer
from repot.config.endpoints import endpoints
from repot.errors import AccessRefused, BrokerUnreachable, DepthUnknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from repot.brokers.sweep import Decide, Swept
    from repot.config import BrokerUrl

#: RabbitMQ counts messages at each tick, and the API at each tick of its own: 5 s both.
DEFAULT_DEPTH_LAG_S = 10.0

#: Quorum queues drop what was returned more than 20 times, since 4.0.
_DEFAULT_RETURN_LIMIT, _LIMITED_SINCE = 20, 4


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
        self._url, self._tls, self._timeout_s = url, tls, timeout_s
        server = self._server = endpoints(url.reveal())[0]
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
        # a user with the tag `management` alone is not told
        self.identity = str(overview.get("node", ""))

    def depth(self, queue: str) -> Depth:
        """Read a queue's counts; they are as old as the broker's statistics."""
        found = self._api.get(f"/api/queues/{segment(self._vhost)}/{segment(queue)}")
        if found is None:
            # a queue may be gone while messages for it are still to come
            return Depth(ready=0, unacked=0, delayed=delayed_for(self._api, self._vhost, queue))
        delayed = delayed_for(self._api, self._vhost, queue)
        try:
            # of classic queues alone, and 0 or absent for a message without its time of sending
            oldest = found.get("head_message_timestamp") if found["messages_ready"] else None
            # what a quorum queue hands to the dead letters has left it only when they have it
            unacked = found["messages_unacknowledged"] + found.get("messages_dlx", 0)
            return Depth(found["messages_ready"], unacked, float(oldest) if oldest else None, delayed)
        except KeyError as error:
            message = f"RabbitMQ has not counted the messages of {queue!r} yet"
            raise DepthUnknown(message, hint="Its statistics appear some seconds after the queue.") from error

    def sweep(self, queue: str, decide: Decide) -> Swept:
        """Take each message, and give back what is kept; how many returns the queue allows is asked first."""
        limit = self._return_limit(queue)
        with self._connected() as connection:
            return rabbitmq_sweep.sweep(connection, queue, decide, limit)

    def requests(self) -> AmqpRequests:
        """Frames; a delivery tag is a number that counts within a channel."""
        return AmqpRequests()

    def close(self) -> None:
        """Nothing to close: each question is a request of its own."""

    @contextmanager
    def _connected(self) -> Iterator[amqp.Connection]:
        """An AMQP connection that confirms what is published, for one sweep."""
        options = {"confirm_publish": True, "read_timeout": self._timeout_s, "write_timeout": self._timeout_s}
        connection = Connection(
            self._url.reveal(),
            ssl=self._server.is_encrypted if self._tls is None else cast("dict[str, Any]", self._tls),
            connect_timeout=self._timeout_s,
            transport_options=options,
        )
        try:
            yield connection.ensure_connection(max_retries=1).connection
        except (amqp.AMQPError, OSError, OperationalError) as error:
            if isinstance(error, amqp.AccessRefused):
                message = f"{self._server} refuses access: {error}"
                raise AccessRefused(message, hint="The user needs to read the queue and to write to it.") from error
            raise no_answer(self._server, error) from error
        finally:
            connection.release()

    def _return_limit(self, queue: str) -> int | None:
        """After how many returns the queue drops a message, by its arguments and policies; None for never."""
        found = self._api.get(f"/api/queues/{segment(self._vhost)}/{segment(queue)}") or {}
        if found.get("type") != "quorum":
            return None
        stated = (
            (found.get("arguments") or {}).get("x-delivery-limit"),
            (found.get("effective_policy_definition") or {}).get("delivery-limit"),
        )
        limits = [int(limit) for limit in stated if limit is not None]
        if not limits:
            return _DEFAULT_RETURN_LIMIT if int(self.version.partition(".")[0]) >= _LIMITED_SINCE else None
        # -1 is no limit
        return min((limit for limit in limits if limit >= 0), default=None)
