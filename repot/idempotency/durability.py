"""Whether the lease store keeps what it was given."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.cluster import RedisCluster

from repot.brokers.facts import Unknown
from repot.errors import RepotError
from repot.idempotency.connection import StoreConnection

if TYPE_CHECKING:
    from repot.config import WorkerSettings


class Durability(NamedTuple):
    """Why the lease store may drop records while it runs, and why a crash or restart may lose some."""

    evicts: tuple[str, ...] = ()
    forgets: tuple[str, ...] = ()


class _Durability(StoreConnection):
    """Asks the store for its state; changes nothing."""

    package = "repot.idempotency"

    def info(self) -> dict[str, Any] | Unknown:
        if isinstance(self.client, RedisCluster):
            return Unknown("the lease store is a cluster, each node of which has settings of its own")
        found: dict[str, Any] = self._ask(self.client.info)
        return found


def weaknesses(settings: WorkerSettings) -> list[str] | Unknown:
    """Return why the lease store may forget; Unknown if its server does not say."""
    found = durability(settings)
    return found if isinstance(found, Unknown) else [*found.forgets, *found.evicts]


def durability(settings: WorkerSettings) -> Durability | Unknown:
    """Return why the Redis or Valkey of the lease store may forget; Unknown if its server does not say."""
    with closing(_Durability(settings)) as store:
        try:
            found = store.info()
        except RepotError as error:
            return Unknown(error.message, error.hint)
    if isinstance(found, Unknown):
        return found
    evicts, forgets = [], []
    if not found.get("aof_enabled"):
        forgets.append("appendonly is no: a restart forgets the last minutes, or everything")
    if (policy := found.get("maxmemory_policy", "noeviction")) != "noeviction":
        evicts.append(f"maxmemory-policy is {policy}: a full memory drops keys")
    return Durability(tuple(evicts), tuple(forgets))
