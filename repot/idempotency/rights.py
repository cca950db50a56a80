"""The rights that a user of the lease store needs (Redis ACL); find those that a user lacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis.cluster import RedisCluster

from repot.brokers.facts import Unknown
from repot.idempotency.connection import StoreConnection

if TYPE_CHECKING:
    from repot.config import WorkerSettings

#: Commands of every connection, and commands to run scripts.
_CONNECTION = ("client|setname", "select")
_SCRIPTS = ("evalsha", "script|load")


@dataclass(frozen=True, slots=True)
class Rights:
    """Commands, and the kinds of keys that they run on: the part of a key after the prefix."""

    keys: tuple[str, ...]
    commands: tuple[str, ...]
    by_script: bool = True

    def acl(self, prefix: str = "repot") -> str:
        """Return the rules for `ACL SETUSER`, without user and password."""
        patterns = [f"~{prefix}:{key}:*" for key in self.keys]
        needed = (*_CONNECTION, *(_SCRIPTS if self.by_script else ()), *self.commands)
        return " ".join([*patterns, *(f"+{command}" for command in needed)])


#: A worker of guarded tasks.
GUARD = Rights(("idempotency",), ("time", "hmget", "hset", "hdel", "persist", "pexpire"))

#: A worker that counts deliveries (WORKER_MAX_DELIVERIES).
DELIVERIES = Rights(("deliveries",), ("incrby", "decrby", "expire"), by_script=False)

#: A process that submits jobs; a worker that runs them needs `GUARD` as well.
JOBS = Rights(
    ("jobs",),
    (
        *("time", "get", "set", "del", "exists", "incr", "pexpire", "hmget", "hgetall", "hset", "hdel", "hexists"),
        *("hincrby", "hincrbyfloat", "xadd", "xrevrange", "zadd", "zcard", "zpopmin"),
    ),
)

#: A process that sends, runs or revokes tasks during a rollout: it follows the record, and reports what it counts.
ROLLOUT = Rights(
    ("rollout",),
    (
        *("time", "get", "set", "hget", "hgetall", "hset", "hsetnx", "hincrby"),
        *("zadd", "zrange", "zremrangebyscore", "zremrangebyrank", "expire"),
    ),
)

#: A beat during a rollout, besides `ROLLOUT`: it asks for its lease, and stores what ran.
BEAT = Rights(("rollout",), ("time", "hmget", "hgetall", "hset", "zadd", "zrange"))

#: A process that leads a rollout, or changes its record.
ROLLOUTS = Rights(
    ("rollout",),
    (
        *("time", "get", "set", "del", "hget", "hmget", "hgetall", "hset", "hsetnx", "hdel", "hincrby"),
        *("rpush", "ltrim", "lrange"),
    ),
)

#: `repot leases`.
LEASES = Rights(
    ("idempotency", "jobs"),
    ("eval", "scan", "time", "get", "del", "hgetall", "hmget", "hset", "hdel", "hexists", "pexpire"),
)


class RightsCheck(StoreConnection):
    """Asks the store for its user's rights; changes nothing."""

    package = "repot.idempotency"

    def missing(self, rights: Rights) -> tuple[str, ...] | Unknown:
        """Return the missing rights, as `+command ~key`; Unknown on a server older than Redis 7.0.

        Raises:
            StoreRefused: the user may not run scripts.
            StoreUnreachable: the store does not answer.
        """
        prefix = self._settings.lease_prefix
        wanted = [(command, f"{prefix}:{key}:{{doctor}}") for key in rights.keys for command in rights.commands]
        arguments = [word for pair in wanted for word in pair]
        # no KEYS: access to the key may be what is missing
        answer = self._ask(lambda: self._script("rights")(args=arguments))
        if answer == "unknown":
            return Unknown("the lease store is older than Redis 7.0, which cannot report rights", "Upgrade it.")
        return tuple(
            f"+{command} ~{key.removesuffix('{doctor}')}*" for command, key in zip(*[iter(answer)] * 2, strict=True)
        )

    def is_replica(self) -> bool | Unknown:
        """Return whether the server reports itself as a replica (HELLO); Unknown on a server older than Redis 6.

        Every user may send HELLO, whatever its rights. A cluster has replicas, and its clients know them.
        """
        if isinstance(self.client, RedisCluster):
            return False
        answer = self._ask(lambda: self.client.execute_command("HELLO"))  # type: ignore[no-untyped-call]
        # a flat list with RESP2
        reply = answer if isinstance(answer, dict) else dict(zip(*[iter(answer)] * 2, strict=True))
        return reply["role"] == "replica" if "role" in reply else Unknown("the lease store does not report its role")


def is_replica(settings: WorkerSettings) -> bool | Unknown:
    """Return whether the lease store is a replica, which refuses writes.

    Raises:
        StoreRefused, StoreUnreachable, StoreMisconfigured: as every request to the store.
    """
    check = RightsCheck(settings)
    try:
        return check.is_replica()
    finally:
        check.close()


def missing_rights(settings: WorkerSettings, *wanted: Rights) -> tuple[str, ...] | Unknown:
    """Return which of these rights the user of the lease store lacks.

    Raises:
        StoreRefused, StoreUnreachable, StoreMisconfigured: as every request to the store.
    """
    check = RightsCheck(settings)
    try:
        found = [check.missing(rights) for rights in wanted]
    finally:
        check.close()
    unknown = next((one for one in found if isinstance(one, Unknown)), None)
    return unknown or tuple(dict.fromkeys(right for one in found if not isinstance(one, Unknown) for right in one))
