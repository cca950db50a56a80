"""Looking at a Redis or Valkey that serves as a Celery broker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

import redis

from repot.brokers.port import Depth
from repot.errors import BrokerUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from repot.config import BrokerUrl

Answer = TypeVar("Answer")

#: kombu keeps one list for each step of priority: `queue`, `queue\x06\x163`, ...
_SEPARATOR = "\x06\x16"
_PRIORITY_STEPS = (0, 3, 6, 9)


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

    def __init__(self, url: BrokerUrl, timeout_s: float = 5) -> None:
        """Connect to the first server of the address.

        Raises:
            BrokerUnreachable: it does not answer.
        """
        self._url = url
        self._client: redis.Redis = redis.Redis.from_url(
            url.servers[0], socket_timeout=timeout_s, socket_connect_timeout=timeout_s, decode_responses=True
        )
        server = self._ask(lambda: self._client.info("server"))
        self.product, self.version = product_and_version(server)
        self.identity = str(server["process_id"])

    def depth(self, queue: str) -> Depth:
        """Count a queue's lists, and those of the shared hash `unacked` that came from it."""
        lists = [queue, *(f"{queue}{_SEPARATOR}{step}" for step in _PRIORITY_STEPS[1:])]

        def count() -> Depth:
            with self._client.pipeline(transaction=True) as pipeline:
                for name in lists:
                    pipeline.llen(name)
                pipeline.hvals("unacked")
                *lengths, reserved = pipeline.execute()
            return Depth(ready=sum(lengths), unacked=sum(_routing_key(entry) == queue for entry in reserved))

        return self._ask(count)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        try:
            return question()
        except redis.RedisError as error:
            message = f"{self._url.masked()} did not answer: {error}"
            raise BrokerUnreachable(message, hint="`repot config show` shows the address in use.") from error


def _routing_key(entry: str) -> str:
    """The queue a reserved message goes back to: kombu stores [message, exchange, routing key]."""
    return str(json.loads(entry)[2])
