"""Looking at a Redis or Valkey that serves as a Celery broker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

import redis

from repot.brokers import redis_sweep
from repot.brokers.port import Depth
from repot.brokers.redis_client import open_client
from repot.brokers.redis_inflight import InFlight
from repot.brokers.redis_wire import RespRequests
from repot.brokers.refusals import no_answer
from repot.config.endpoints import endpoints
from repot.errors import AccessRefused, BrokerUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from repot.brokers.sweep import Decide, Swept
    from repot.config import BrokerUrl
    from repot.config.endpoints import Endpoint

Answer = TypeVar("Answer")

#: How kombu calls its keys unless its transport options say otherwise: one list for each step of priority, `queue`,
#: `queue\x06\x163`, ..., and one hash for what is reserved, of all queues, with an index of since when.
_KEYS = {
    "global_keyprefix": "",
    "sep": "\x06\x16",
    "priority_steps": (0, 3, 6, 9),
    "unacked_key": "unacked",
    "unacked_index_key": "unacked_index",
}


def product_and_version(info: Mapping[str, Any]) -> tuple[str, str]:
    """What a server that answered INFO so is; the version is empty where it does not say."""
    # Valkey states a Redis version too, for old clients
    if "valkey_version" in info:
        return "Valkey", str(info["valkey_version"])
    return "Redis", str(info.get("redis_version", ""))


class RedisBroker:
    """The `Broker` port on Redis."""

    #: Redis counts at the moment it is asked.
    depth_lag_s = 0.0

    def __init__(
        self,
        url: BrokerUrl,
        *,
        tls: Mapping[str, Any] | None = None,
        transport_options: Mapping[str, Any] | None = None,
        timeout_s: float = 5,
    ) -> None:
        """Connect to the first server of the address, or Sentinel's master.

        `transport_options` are kombu's, which may name keys and the master.

        Raises:
            BrokerUnreachable: it does not answer.
        """
        self._keys: dict[str, Any] = _KEYS | {
            name: value for name, value in (transport_options or {}).items() if name in _KEYS
        }
        servers = endpoints(url.reveal())
        self._endpoint = servers[0]
        self._client = open_client(
            self._endpoint, tls=tls, timeout_s=timeout_s, transport_options=transport_options, sentinels=servers
        )
        self._in_flight = InFlight(self._client, self._keys)
        server = self._ask(lambda: self._client.info("server"))
        self.product, self.version = product_and_version(server)
        self.identity = str(server["process_id"])

    def depth(self, queue: str) -> Depth:
        """Count a queue's lists, and what workers hold of it."""
        lists = redis_sweep.lists_of(queue, self._keys)
        found, unacked = self._ask(lambda: self._in_flight.count(queue, lists))
        return Depth(sum(found[::2]), unacked, _earliest(message for message in found[1::2] if message))

    def sweep(self, queue: str, decide: Decide) -> Swept:
        """Go through a queue's lists; a script moves a message from one to another in one step."""
        return self._ask(lambda: redis_sweep.sweep(self._client, queue, decide, self._keys))

    def requests(self) -> RespRequests:
        """Commands; a delivery tag is the one that kombu wrote into the message, across redeliveries too."""
        prefix = self._keys["global_keyprefix"]
        return RespRequests(f"{prefix}{self._keys['unacked_index_key']}", f"{prefix}{self._keys['unacked_key']}")

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        try:
            return question()
        except redis.RedisError as error:
            raise refusal(self._endpoint, error) from error


def refusal(server: Endpoint, error: redis.RedisError) -> BrokerUnreachable:
    """The error for a question that was not answered: access refused, TLS at fault, or nobody there."""
    if isinstance(error, redis.AuthenticationError | redis.exceptions.NoPermissionError):
        hint = "Check user and password of the address."
        if isinstance(error, redis.exceptions.NoPermissionError):
            hint = f"The user needs: ACL SETUSER {server.user or 'default'} +@connection"
        return AccessRefused(f"{server} refuses access: {error}", hint=hint)
    return no_answer(server, error)


def _earliest(messages: Iterable[str]) -> float | None:
    """When the earliest of these messages was sent; None if there is none, or one does not say."""
    sent = [_sent_at(message) for message in messages]
    known = [moment for moment in sent if moment is not None]
    return min(known) if known and len(known) == len(sent) else None


def _sent_at(message: str) -> float | None:
    try:
        return float(json.loads(message)["properties"]["timestamp"])
    except (ValueError, KeyError, TypeError):
        return None
