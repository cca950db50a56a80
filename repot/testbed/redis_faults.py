"""Faults of every Redis: memory, durability, queues."""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from repot.brokers.browse import Discard
from repot.testbed.nodes import NodeBroker
from repot.testbed.startup import LOOPBACK
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from repot.testbed.nodes import Node

#: The settings of an append-only file that survives any death of its server.
APPEND_ONLY = {"appendonly": "yes", "appendfsync": "always"}

#: The memory left for new data while a server evicts, in bytes.
_ROOM_BYTES = 1 << 20
_CHANGED_WITHIN_S = 10


class RedisFaults(NodeBroker):
    """A Redis that runs out of memory, is made durable, or loses a queue.

    `options` are further words of its command line, read at each start.
    """

    def __init__(self, nodes: list[Node], options: list[str]) -> None:
        """Take servers that do not run yet."""
        super().__init__(nodes)
        self._options = options

    @contextmanager
    def out_of_memory(self) -> Iterator[None]:
        """Let it refuse every write."""
        with _configured(self.primary, {"maxmemory-policy": "noeviction", "maxmemory": "1"}):
            yield

    @contextmanager
    def evicting(self) -> Iterator[None]:
        """Evict all keys now, and later whatever exceeds a megabyte."""
        with _configured(self.primary, {"maxmemory-policy": "allkeys-random", "maxmemory": "1"}):
            with connected(self.primary) as client:
                wait_until(lambda: not client.info("keyspace"), within_s=_CHANGED_WITHIN_S, what="Redis evicted all")
                # its own need is above a limit of 1: it would refuse every write
                client.config_set("maxmemory", client.info("memory")["used_memory"] + _ROOM_BYTES)
            yield

    @contextmanager
    def durable(self) -> Iterator[None]:
        """Let every server write and sync each change, now and after each start."""
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

    def apart(self, name: str, options: Mapping[str, Any]) -> Self:
        """Return this Redis without data: no experiment shares it, but an earlier attempt may have left something."""
        del name
        made = copy(self)
        made.options = options
        with connected(self.primary) as client:
            client.flushall()
        return made

    def delete_queue(self, queue: str) -> None:
        """Remove every message from its lists: an empty list does not exist."""
        with closing(self.open()) as broker:
            broker.browse(queue, lambda _: Discard())


@contextmanager
def _configured(node: Node, wanted: dict[str, str]) -> Iterator[None]:
    """Change settings of a server for the duration of a `with`, or until its process ends."""
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
    """Connect a client to one server; `Any`, because redis-py annotates every answer as perhaps awaitable."""
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
    """Return whether the append-only file holds all data: its first writing has ended."""
    found = client.info("persistence")
    return bool(found["aof_enabled"]) and not (found["aof_rewrite_in_progress"] or found["aof_rewrite_scheduled"])
