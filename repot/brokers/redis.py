"""Looking at a Redis or Valkey that serves as a Celery broker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from repot.brokers import redis_sweep
from repot.brokers.port import Depth
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


def open_client(server: Endpoint, *, tls: Mapping[str, Any] | None = None, timeout_s: float = 5) -> redis.Redis:
    """A client of one server; connects with its first command. `tls` are redis-py's options.

    Raises:
        BrokerUnreachable: the address is one of Sentinel's.
    """
    if server.scheme == "sentinel":
        message = f"{server}: repot does not look behind sentinel:// yet"
        raise BrokerUnreachable(message, hint="Name the master itself.")
    where: dict[str, Any] = {"host": server.host or "localhost", "port": server.port or 6379}
    if server.scheme == "redis+socket":
        where = {"unix_socket_path": server.host}
    return redis.Redis(
        **where,
        db=int(server.path or 0),
        username=server.user or None,
        password=server.password or None,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        decode_responses=True,
        # whatever lies in a list goes back as it came
        encoding_errors="surrogateescape",
        # redis-py would try for a minute
        retry=Retry(NoBackoff(), 0),
        **tls_options(server, tls),
    )


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
        """Connect to the first server of the address; `transport_options` are kombu's, which may name keys.

        Raises:
            BrokerUnreachable: it does not answer.
        """
        self._keys: dict[str, Any] = _KEYS | {
            name: value for name, value in (transport_options or {}).items() if name in _KEYS
        }
        self._endpoint = endpoints(url.reveal())[0]
        self._client = open_client(self._endpoint, tls=tls, timeout_s=timeout_s)
        server = self._ask(lambda: self._client.info("server"))
        self.product, self.version = product_and_version(server)
        self.identity = str(server["process_id"])

    def depth(self, queue: str) -> Depth:
        """Count a queue's lists, and those of the shared hash `unacked` that came from it."""
        prefix = self._keys["global_keyprefix"]
        lists = redis_sweep.lists_of(queue, self._keys)

        def count() -> Depth:
            with self._client.pipeline(transaction=True) as pipeline:
                for name in lists:
                    pipeline.llen(name)
                    # taken from the right: the oldest
                    pipeline.lindex(name, -1)
                pipeline.hvals(f"{prefix}{self._keys['unacked_key']}")
                *found, reserved = pipeline.execute()
            lengths, oldest = found[::2], [message for message in found[1::2] if message]
            unacked = sum(_routing_key(entry) == queue for entry in reserved)
            return Depth(sum(lengths), unacked, _earliest(oldest))

        return self._ask(count)

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


def tls_options(server: Endpoint, tls: Mapping[str, Any] | None) -> dict[str, Any]:
    """redis-py's options for a server, from those of all servers and the address' own."""
    if not server.is_encrypted and tls is None:
        return {}
    # options of the address win, as in kombu
    return {"ssl": True, **(tls or {}), **(server.tls or {})}


def _routing_key(entry: str) -> str:
    """The queue a reserved message goes back to: kombu stores [message, exchange, routing key]."""
    return str(json.loads(entry)[2])


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
