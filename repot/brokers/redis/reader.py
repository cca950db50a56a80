"""Read a queue on Redis window by window, and hold it for one mover."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from repot.brokers.moving import QueueHold, QueueReader
from repot.brokers.redis import reservation
from repot.errors import AlreadyMoving, BrokerUnreachable, LeaseLost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from repot.brokers.redis.journal import Ask
    from repot.brokers.reservation import Reservation

#: ARGV: holder, lease in ms, a holder that has ended. Returns the holder if it is another one.
_HOLD = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] and holder ~= ARGV[3] then return holder end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
"""
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


class RedisReader(QueueReader):
    """Reservations by scripts, over the broker's own connection."""

    def __init__(self, client: Any, queue: str, keys: Mapping[str, Any], lease_s: float, ask: Ask) -> None:  # noqa: ANN401 - redis.Redis
        """Read with `client`."""
        self._client, self._lease_s, self._ask = client, lease_s, ask
        self._names = reservation.keys_of(queue, keys)

    def take(self, limit: int, name: str) -> Reservation:
        """Put back expired reservations of the queue, and move messages to the reservation's own lists."""
        return reservation.take(self._client, self._names, name, limit, self._lease_s, self._ask)

    def left(self, prefix: str) -> tuple[str, ...]:
        """Return the reservations of the index whose names start with it."""
        found = self._ask(lambda: self._client.zrange(self._names[0], 0, -1))
        return tuple(name for name in found if name.startswith(prefix))

    def adopt(self, name: str, new_name: str) -> Reservation:
        """Rename a reservation's lists."""
        return reservation.adopt(self._client, self._names, name, new_name, self._lease_s, self._ask)

    def close(self) -> None:
        """Do nothing: the connection is the broker's."""


class RedisHold(QueueHold):
    """A key that expires unless it is renewed."""

    def __init__(
        self,
        client: Any,  # noqa: ANN401 - redis.Redis
        key: str,
        holder: str,
        lease_s: float,
        ask: Ask,
    ) -> None:
        """Name the key; `acquire` takes it."""
        self._client, self._key, self._holder, self._ms, self._ask = client, key, holder, round(lease_s * 1000), ask

    def acquire(self, is_gone: Callable[[str], bool]) -> RedisHold:
        """Take the key, also from a holder that has ended.

        Raises:
            AlreadyMoving: another holder has it.
        """
        other = self._run(_HOLD, self._holder, self._ms, "")
        if other and is_gone(other):
            other = self._run(_HOLD, self._holder, self._ms, other)
        if other:
            raise AlreadyMoving.by(other)
        return self

    def renew(self) -> None:
        """Extend the lease, or acquire it again if it has ended and no other mover has it."""
        if self._run(_HOLD, self._holder, self._ms, ""):
            raise LeaseLost.of_move(self._key)

    def release(self) -> None:
        """Delete the key; one that cannot be deleted expires."""
        with suppress(BrokerUnreachable):
            self._run(_RELEASE, self._holder)

    def _run(self, script: str, *words: object) -> Any:  # noqa: ANN401 - what the script returns
        return self._ask(lambda: self._client.register_script(script)(keys=[self._key], args=list(words)))
