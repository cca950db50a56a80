"""The rights that a user of the lease store needs (Redis ACL), and which of them a user lacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis.cluster import RedisCluster

from repot.brokers.facts import Unknown
from repot.idempotency.connection import StoreConnection

if TYPE_CHECKING:
    from repot.config import WorkerSettings

#: What every connection does, and how scripts are called.
_CONNECTION = ("client|setname", "select")
_SCRIPTS = ("evalsha", "script|load")


@dataclass(frozen=True, slots=True)
class Rights:
    """Commands, and the names of the keys they are run on, after the prefix."""

    keys: tuple[str, ...]
    commands: tuple[str, ...]
    by_script: bool = True

    def acl(self, prefix: str = "repot") -> str:
        """Return the rules as `ACL SETUSER` takes them, without user and password."""
        patterns = [f"~{prefix}:{key}:*" for key in self.keys]
        needed = (*_CONNECTION, *(_SCRIPTS if self.by_script else ()), *self.commands)
        return " ".join([*patterns, *(f"+{command}" for command in needed)])


#: A worker of guarded tasks.
GUARD = Rights(("claim",), ("time", "hmget", "hset", "hdel", "hsetnx", "hincrby", "persist", "pexpire"))

#: A worker that counts deliveries (WORKER_MAX_DELIVERIES).
DELIVERIES = Rights(("deliveries",), ("incrby", "decrby", "expire"), by_script=False)

#: A submitter of jobs, and a worker that runs them, beside `GUARD`.
JOBS = Rights(
    ("jobs",),
    (
        *("time", "get", "set", "del", "exists", "incr", "pexpire", "hmget", "hgetall", "hset", "hdel", "hexists"),
        *("hincrby", "hincrbyfloat", "xadd", "xrevrange", "zadd", "zcard", "zpopmin"),
    ),
)

#: `repot locks`.
LOCKS = Rights(
    ("claim", "jobs"),
    ("eval", "scan", "time", "get", "del", "hgetall", "hmget", "hset", "hdel", "hexists", "pexpire"),
)


class RightsCheck(StoreConnection):
    """Asks the store what its user may do; changes nothing."""

    package = "repot.idempotency"

    def missing(self, rights: Rights) -> tuple[str, ...] | Unknown:
        """Return what is missing, as `+command ~key`; Unknown on a server before Redis 7.0.

        Raises:
            StoreRefused: the user may not even run scripts.
            StoreUnreachable: the store does not answer.
        """
        prefix = self._settings.lease_prefix
        wanted = [(command, f"{prefix}:{key}:{{doctor}}") for key in rights.keys for command in rights.commands]
        arguments = [word for pair in wanted for word in pair]
        # without a key of its own: that may be what is missing
        answer = self._ask(lambda: self._script("rights")(args=arguments))
        if answer == "unknown":
            return Unknown("the lease store is older than Redis 7.0, and tells no rights", "Upgrade it.")
        return tuple(
            f"+{command} ~{key.removesuffix('{doctor}')}*" for command, key in zip(*[iter(answer)] * 2, strict=True)
        )

    def is_replica(self) -> bool | Unknown:
        """Return whether the store says in its greeting that it is a replica; Unknown before Redis 6.

        Every user may ask for the greeting, whatever its rights. A cluster has replicas, and its clients know them.
        """
        if isinstance(self.client, RedisCluster):
            return False
        answer = self._ask(lambda: self.client.execute_command("HELLO"))  # type: ignore[no-untyped-call]
        # a list with RESP2
        said = answer if isinstance(answer, dict) else dict(zip(*[iter(answer)] * 2, strict=True))
        return said["role"] == "replica" if "role" in said else Unknown("the lease store does not say what it is")


def is_replica(settings: WorkerSettings) -> bool | Unknown:
    """Return whether the lease store is a replica, which refuses writes.

    Raises:
        StoreRefused, StoreUnreachable, StoreMisconfigured: as every question to the store.
    """
    check = RightsCheck(settings)
    try:
        return check.is_replica()
    finally:
        check.close()


def missing_rights(settings: WorkerSettings, *wanted: Rights) -> tuple[str, ...] | Unknown:
    """Return what the user of the lease store lacks of these rights.

    Raises:
        StoreRefused, StoreUnreachable, StoreMisconfigured: as every question to the store.
    """
    check = RightsCheck(settings)
    try:
        found = [check.missing(rights) for rights in wanted]
    finally:
        check.close()
    unknown = next((one for one in found if isinstance(one, Unknown)), None)
    return unknown or tuple(dict.fromkeys(right for one in found if not isinstance(one, Unknown) for right in one))
