"""The conditions of a move on Redis, by INFO, LLEN and CLIENT LIST."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

import redis

from repot.brokers.conditions import QueueLimits, QueueUse, Room, Traffic
from repot.brokers.facts import Unknown
from repot.brokers.redis.clients import consumes
from repot.brokers.redis.lists import lists_of
from repot.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


_SENT = Unknown("Redis does not count what is sent to a list")
_TAKEN = Unknown("Redis does not count what is taken from a list")
_EMPTY = Unknown("Redis has no key for an empty list, so nothing shows who waits for one")
#: Seconds between two counts.
_APART_S = 1.0


class RedisConditions:
    """Asks one server about kombu's lists."""

    def __init__(
        self, client: redis.Redis, keys: Mapping[str, Any], max_body_bytes: int, ask: Callable[[Callable[[], Any]], Any]
    ) -> None:
        """Ask by this client; `keys` are transport options, and `ask` raises repot's errors."""
        self._client, self._keys, self._max_body_bytes, self._ask = client, keys, max_body_bytes, ask

    def limits(self, queue: str) -> QueueLimits | Unknown:
        """Return the size of an element: a list has no other limit."""
        del queue
        return QueueLimits(message_bytes=self._max_body_bytes)

    def room(self) -> Room:
        """Read memory and its limit; a replica takes no writes."""
        info = self._allowed(self._client.info, "INFO", "+info")
        if isinstance(info, Unknown):
            return Room(alarms=info, memory_used_bytes=info, memory_limit_bytes=info, eviction=info)
        is_replica = info.get("role") in ("slave", "replica")
        return Room(
            alarms=("it is a replica, which takes no writes",) if is_replica else (),
            memory_used_bytes=_number(info, "used_memory"),
            memory_limit_bytes=_number(info, "maxmemory") or None,
            eviction=str(info.get("maxmemory_policy") or "")
            or Unknown("INFO does not state maxmemory_policy on this server"),
        )

    def traffic(self, queues: Sequence[str]) -> Mapping[str, Traffic]:
        """List who consumes on this database, and count the queues twice."""
        begun_at, before = monotonic(), [self._length(queue) for queue in queues]
        clients = self._allowed(self._client.client_list, "CLIENT LIST", "+client|list")
        consumers = clients if isinstance(clients, Unknown) else self._waiting(clients)
        wait_until(lambda: monotonic() - begun_at >= _APART_S, within_s=60, what="a second has passed", poll_s=0.1)
        passed_s = monotonic() - begun_at
        return {
            queue: Traffic(consumers, _SENT, _growth(first, self._length(queue), passed_s), of_any_queue=True)
            for queue, first in zip(queues, before, strict=True)
        }

    def use(self, queue: str) -> QueueUse | Unknown:
        """Say that Redis does not count it."""
        del queue
        return _TAKEN

    def by_priority(self, queue: str) -> Mapping[str, int] | Unknown:
        """Count each of the queue's lists, those with the lowest number first."""
        lengths: list[int] | Unknown = self._allowed(lambda: self._lengths(queue), "LLEN", "+llen")
        if isinstance(lengths, Unknown):
            return lengths
        return dict(zip(map(str, self._keys["priority_steps"]), lengths, strict=True))

    def existing(self, queues: Iterable[str]) -> tuple[Sequence[str], Unknown | None]:
        """Return which lists hold messages; an empty list has no key, though a client may wait for it."""
        keys: list[str] = []
        queues = list(queues)
        for queue in queues if self._may_exist(queues) else ():
            length = self._length(queue)
            if isinstance(length, Unknown):
                return keys, length
            if length:
                keys.append(queue)
        return keys, _EMPTY

    def _may_exist(self, queues: Sequence[str]) -> bool:
        """Return whether one of these queues has a key, by one question; True as well without the right to ask."""
        keys = [name for queue in queues for name in lists_of(queue, self._keys)]
        return bool(keys) and self._allowed(lambda: self._client.exists(*keys), "EXISTS", "+exists") != 0

    def _lengths(self, queue: str) -> list[int]:
        with self._client.pipeline(transaction=False) as pipeline:
            for name in lists_of(queue, self._keys):
                pipeline.llen(name)
            return list(pipeline.execute())

    def _length(self, queue: str) -> int | Unknown:
        found = self.by_priority(queue)
        return found if isinstance(found, Unknown) else sum(found.values())

    def _waiting(self, clients: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
        database = int(self._client.get_connection_kwargs().get("db", 0))
        return tuple(_client(one) for one in clients if consumes(one, database))

    def _allowed(self, question: Callable[[], Any], command: str, right: str) -> Any:  # noqa: ANN401 - an answer of redis-py
        """Return an answer; `Unknown`, with the missing right, where the server refuses it."""

        def guarded() -> Any:  # noqa: ANN401
            try:
                return question()
            except redis.ResponseError as error:
                return Unknown(f"{command} is refused: {error}", f"ACL SETUSER ... {right} would allow it.")

        return self._ask(guarded)


def _number(info: Mapping[str, Any], name: str) -> int | Unknown:
    found = info.get(name)
    return found if isinstance(found, int) else Unknown(f"INFO does not state {name} on this server")


def _client(client: Mapping[str, str]) -> str:
    names = [client[name] for name in ("name", "user") if client.get(name) not in (None, "", "default")]
    return " ".join((client.get("addr", "an unknown address"), *names))


def _growth(before: int | Unknown, after: int | Unknown, passed_s: float) -> float | Unknown:
    if isinstance(before, Unknown):
        return before
    return after if isinstance(after, Unknown) else (after - before) / passed_s
