"""Harm that is the same on every Redis: memory, durability, queues."""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from repot.brokers.local.launching import LOOPBACK
from repot.brokers.local.nodes import NodeGround
from repot.brokers.sweep import Discard
from repot.errors import Inapplicable
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from repot.brokers.local.nodes import Node

#: What an append-only file that survives any death of its server takes.
APPEND_ONLY = {"appendonly": "yes", "appendfsync": "always"}

#: What a server that evicts has for new data, in bytes: less than a limit it would still be above for want of keys.
_ROOM_BYTES = 1 << 20
_CHANGED_WITHIN_S = 10


class RedisHarm(NodeGround):
    """A Redis that is starved, made to last, or loses a queue.

    `options` are further words of its command line; what is read at each start.
    """

    def __init__(self, nodes: list[Node], options: list[str]) -> None:
        """Of servers that do not run yet."""
        super().__init__(nodes)
        self._options = options

    @contextmanager
    def short_of_memory(self) -> Iterator[None]:
        """Refuse every write."""
        with _configured(self.in_charge, {"maxmemory-policy": "noeviction", "maxmemory": "1"}):
            yield

    @contextmanager
    def evicting(self) -> Iterator[None]:
        """Throw away all there is, and then some of what comes once that is more than a little."""
        with _configured(self.in_charge, {"maxmemory-policy": "allkeys-random", "maxmemory": "1"}):
            with connected(self.in_charge) as client:
                wait_until(lambda: not client.info("keyspace"), within_s=_CHANGED_WITHIN_S, what="Redis threw all away")
                # its own need is above a limit of 1: it would refuse every write
                client.config_set("maxmemory", client.info("memory")["used_memory"] + _ROOM_BYTES)
            yield

    def giving_up(self, queue: str, deliveries: int) -> AbstractContextManager[None]:
        """Refused."""
        del queue, deliveries
        message = f"{self.product} counts no deliveries: it has no delivery limit"
        raise Inapplicable(message)

    def impatient(self, timeout_s: int) -> AbstractContextManager[None]:
        """Refused."""
        del timeout_s
        message = f"{self.product} does not wait for acknowledgements: it has no consumer_timeout"
        raise Inapplicable(message)

    @contextmanager
    def durable(self) -> Iterator[None]:
        """Write and sync each change, from now on and after each start, on every server."""
        words = [word for name, value in APPEND_ONLY.items() for word in (f"--{name}", value)]
        with ExitStack() as configured:
            for node in self.nodes:
                configured.enter_context(_configured(node, APPEND_ONLY))
                with connected(node) as client:
                    wait_until(partial(_is_on_disk, client), within_s=_CHANGED_WITHIN_S, what="Redis wrote what it has")
            self._options += words
            try:
                yield
            finally:
                del self._options[-len(words) :]

    def delete_queue(self, queue: str) -> None:
        """Take every message off its lists: an empty list does not exist."""
        with closing(self.open()) as broker:
            broker.sweep(queue, lambda _: Discard())


@contextmanager
def _configured(node: Node, wanted: dict[str, str]) -> Iterator[None]:
    """Settings of a server, for as long as its process lives."""
    process = node.launched.process
    with connected(node) as client:
        before = {name: client.config_get(name)[name] for name in wanted}
    try:
        with connected(node) as client:
            _set_all(client, wanted)
        yield
    finally:
        # one that was started since has its own
        if node.runs and node.launched.process is process:
            with connected(node) as client:
                _set_all(client, before)


@contextmanager
def connected(node: Node) -> Iterator[Any]:
    """A client of one server; `Any`, because redis-py's annotations name every answer an awaitable, too."""
    with closing(
        redis.Redis(
            LOOPBACK,
            node.port,
            socket_timeout=5,
            socket_connect_timeout=5,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
        )
    ) as client:
        yield client


def _set_all(client: Any, settings: dict[str, str]) -> None:  # noqa: ANN401 - redis.Redis
    """Change settings at run time."""
    for name, value in settings.items():
        client.config_set(name, value)


def _is_on_disk(client: Any) -> bool:  # noqa: ANN401 - redis.Redis
    """Whether the append-only file holds all data: its first writing has ended."""
    found = client.info("persistence")
    return bool(found["aof_enabled"]) and not (found["aof_rewrite_in_progress"] or found["aof_rewrite_scheduled"])
