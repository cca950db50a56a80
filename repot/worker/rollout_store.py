"""The lease store, for what a rollout keeps there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repot.idempotency.connection import StoreConnection
from repot.routing.record import RolloutRecords
from repot.store.hashes import HashRecords
from repot.store.redis_or_database import redis_or_database

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from repot.config import WorkerSettings
    from repot.routing.store import RolloutStore
    from repot.store.rules import R, Rule, T
    from repot.store.shapes import Shape

#: The thread that follows the record, and beat, wait for the store at most so long: a later answer would be too late.
_STORE_TIMEOUT_S = 1.0


def open_rollout_store(settings: WorkerSettings) -> RolloutStore:
    """Return the lease store of the settings, for rollouts; it connects on first use.

    Raises:
        ConfigInvalid: it is a database, and `repot[database]` is not installed. By a method: no setting names a store.
    """
    return redis_or_database(settings, RedisRolloutStore, _in_database)


def _in_database(settings: WorkerSettings) -> RolloutStore:
    from repot.routing.database_store import DatabaseRolloutStore

    return DatabaseRolloutStore(settings)


def rollout_records(settings: WorkerSettings) -> RolloutRecords:
    """Return the records of rollouts in the lease store of the settings.

    Raises:
        ConfigInvalid: as `open_rollout_store`.
    """
    return RolloutRecords(open_rollout_store(settings), settings.lease_prefix)


def quick(settings: WorkerSettings) -> WorkerSettings:
    """Return the settings with short timeouts: for a thread that cannot wait long for the store."""
    return settings.replace(
        socket_timeout=min(settings.socket_timeout, _STORE_TIMEOUT_S),
        socket_connect_timeout=min(settings.socket_connect_timeout, _STORE_TIMEOUT_S),
    )


class RedisRolloutStore(StoreConnection):
    """The `RolloutStore` on Redis or Valkey."""

    package = "repot.routing"

    def text(self, key: str) -> str | None:
        """Return the string of a key."""
        return self._any(lambda: self.client.get(key))  # type: ignore[no-any-return]

    def put_text(self, key: str, text: str) -> None:
        """Put the string of a key."""
        self._any(lambda: self.client.set(key, text))

    def fields(self, key: str) -> dict[str, str]:
        """Return the fields of a hash."""
        return self._any(lambda: self.client.hgetall(key))  # type: ignore[no-any-return]

    def field(self, key: str, field: str) -> str | None:
        """Return a field of a hash."""
        return self._any(lambda: self.client.hget(key, field))  # type: ignore[no-any-return]

    def put(self, key: str, fields: Mapping[str, str]) -> None:
        """Put fields of a hash."""
        self._any(lambda: self.client.hset(key, mapping=dict[Any, Any](fields)))

    def put_first(self, key: str, field: str, value: str) -> str:
        """Put a field of a hash unless there is one."""

        def request() -> Any:  # noqa: ANN401 - redis-py's types include those of asyncio
            self.client.hsetnx(key, field, value)
            return self.client.hget(key, field)

        return self._any(request)  # type: ignore[no-any-return]

    def drop(self, key: str, field: str) -> None:
        """Delete a field of a hash."""
        self._any(lambda: self.client.hdel(key, field))

    def forget(self, *keys: str) -> None:
        """Delete keys."""
        self._any(lambda: self.client.delete(*keys))

    def counts(self, key: str) -> dict[str, int]:
        """Return the fields of a hash as numbers."""
        return {name: int(count) for name, count in self.fields(key).items()}

    def scores(self, key: str, since: float | None = None) -> dict[str, float]:
        """Return the members of a sorted set."""
        first = "-inf" if since is None else since
        return dict(self._any(lambda: self.client.zrange(key, first, "+inf", byscore=True, withscores=True)))  # type: ignore[arg-type]

    def raise_scores(self, key: str, scores: Mapping[str, float]) -> None:
        """Put members of a sorted set whose scores only grow."""
        self._any(lambda: self.client.zadd(key, dict(scores), gt=True))

    def lines(self, key: str) -> list[str]:
        """Return the elements of a list."""
        return self._any(lambda: self.client.lrange(key, 0, -1))  # type: ignore[no-any-return]

    def ends(self, key: str) -> list[str]:
        """Return the first and the last element of a list."""
        return [
            line for place in (0, -1) for line in self._any(lambda place=place: self.client.lrange(key, place, place))
        ]

    def now(self) -> float:
        """Return the server's time."""
        seconds, microseconds = map(int, self._any(self.client.time))
        return seconds + microseconds / 1e6

    def apply(self, key: str, shape: Shape[R], rule: Rule[R, T], history: str = "") -> T:
        """Apply a rule to the record that fields of a hash are; `history` is the key of a list."""
        return HashRecords(self.run, shape).apply(key, rule, history=history)[0]

    def step(self, name: str, keys: Sequence[str], arguments: Sequence[str | float]) -> Any:  # noqa: ANN401 - what the script returns
        """Run the script of this name."""
        return self._any(lambda: self._script(name)(keys=list(keys), args=list(arguments)))

    def _any(self, request: Any) -> Any:  # noqa: ANN401 - redis-py's types include those of asyncio
        return self._ask(request)
