"""A client of the lease store: one server, behind Sentinel, or a cluster; Redis or Valkey."""

from __future__ import annotations

from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import redis
from redis.backoff import FullJitterBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry
from redis.sentinel import Sentinel

from repot.brokers.redis_client import tls_options
from repot.config.endpoints import endpoints
from repot.config.redis import client_tls, keepalive
from repot.errors import ClaimUnreadable, ConfigInvalid, RepotError, StoreMisconfigured, StoreRefused, StoreUnreachable
from repot.idempotency.replies import ERRORS, Meaning, meaning_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis.commands.core import Script

    from repot.config import ServiceUrl, WorkerSettings

T = TypeVar("T")

#: What a client may be; commands and scripts are called alike.
Client = redis.Redis | RedisCluster

#: Attempts after the first, each 0 to 1 s after the one before. Every script may run twice to the same effect, so a
#: lost answer is asked for again.
_RETRIES = 2
_BACKOFF_BASE_S, _BACKOFF_CAP_S = 0.05, 1.0


def open_client(settings: WorkerSettings) -> Client:
    """A client of the store that the settings name; a single server is connected to on first use.

    Raises:
        ConfigInvalid: no setting names a Redis.
        StoreUnreachable: no node of a cluster answers.
    """
    url = settings.store_url
    if url is None:
        message = "claims need a Redis or Valkey: WORKER_LEASE_STORE is not set, and WORKER_RESULT_BACKEND is none"
        raise ConfigInvalid(message, hint="Set WORKER_LEASE_STORE=redis://host:6379/0.")
    options = _options(settings, url)
    if url.scheme == "sentinel":
        # the settings refuse sentinel:// without the master's name
        sentinel = Sentinel(list(url.addresses), sentinel_kwargs=_timeouts(settings))  # type: ignore[no-untyped-call]
        master: redis.Redis = sentinel.master_for(settings.sentinel_master or "", **options)  # type: ignore[no-untyped-call]
        return master
    host, port = url.addresses[0]
    if url.scheme.endswith("+cluster"):
        # a cluster has one database
        del options["db"]
        nodes = [ClusterNode(host, port) for host, port in url.addresses]  # type: ignore[no-untyped-call]
        try:
            return RedisCluster(startup_nodes=nodes, **options)
        except ERRORS as error:
            raise failure(url, error) from error
    if url.scheme == "redis+socket":
        return redis.Redis(unix_socket_path=endpoints(url.servers[0])[0].host, **options)
    return redis.Redis(host=host or "localhost", port=port, **options)


def failure(url: ServiceUrl, error: Exception) -> RepotError:
    """Return the error that says what the store's answer, or its silence, means."""
    reply = meaning_of(error)
    why = f"{type(error).__name__}: {error}"
    match reply.meaning:
        case Meaning.REFUSED:
            message = f"the lease store {url} refuses access: {error} ({reply.reason})"
            return StoreRefused(
                message, hint="Check user, password and rights (docs/rights.md); WORKER_LEASE_STORE names it."
            )
        case Meaning.MISCONFIGURED:
            message = f"the lease store {url} cannot serve: {why} ({reply.reason})"
            return StoreMisconfigured(message, hint="Check WORKER_LEASE_STORE; without it WORKER_RESULT_BACKEND.")
        case Meaning.UNREADABLE:
            message = f"the lease store {url} holds something else under this key: {error}"
            return ClaimUnreadable(message, hint="Give each program its own WORKER_LEASE_PREFIX.")
    message = f"the lease store {url} did not answer: {why} ({reply.reason})"
    return StoreUnreachable(message, hint="WORKER_LEASE_STORE names it; without it WORKER_RESULT_BACKEND.")


class StoreConnection:
    """A client of the store and its scripts; threads may share it, and a forked child connects anew."""

    #: The package whose folder `scripts` holds them, and one that stands before each of the others.
    package: ClassVar[str]
    prelude: ClassVar[str] = ""

    def __init__(self, settings: WorkerSettings) -> None:
        """Use the store that the settings name; connects on first use."""
        self._settings = settings
        self._scripts: dict[str, Script] = {}

    @cached_property
    def client(self) -> Client:
        """The connection."""
        return open_client(self._settings)

    def close(self) -> None:
        """Give the connections back."""
        if "client" in self.__dict__:
            self.client.close()
            del self.client
            self._scripts.clear()

    def _script(self, name: str) -> Script:
        if name not in self._scripts:
            folder = files(self.package) / "scripts"
            texts = [(folder / f"{one}.lua").read_text() for one in (self.prelude, name) if one]
            self._scripts[name] = self.client.register_script("".join(texts))
        return self._scripts[name]

    def _ask(self, question: Callable[[], T]) -> T:
        """The answer of the store.

        Raises:
            StoreUnreachable: it cannot be used now.
            StoreMisconfigured: no retry helps.
            ClaimUnreadable: the value under the key is of another type.
        """
        try:
            return question()
        except ERRORS as error:
            url = self._settings.store_url
            # without one no client was made, and nothing was asked
            assert url is not None
            raise failure(url, error) from error


def _options(settings: WorkerSettings, url: ServiceUrl) -> dict[str, Any]:
    server = endpoints(url.servers[0].replace("+cluster://", "://"))[0]
    return {
        "db": int(server.path or 0),
        "username": server.user or None,
        "password": server.password or None,
        "decode_responses": True,
        # a PING before a command would be a round trip more
        "health_check_interval": 0,
        "client_name": f"{settings.client_name}-leases",
        "retry": Retry(FullJitterBackoff(cap=_BACKOFF_CAP_S, base=_BACKOFF_BASE_S), _RETRIES),
        **tls_options(server, client_tls(settings) if server.is_encrypted else None),
        **_timeouts(settings),
        **dict(_keepalives(settings)),
    }


def _timeouts(settings: WorkerSettings) -> dict[str, float]:
    # a renewal that takes longer than the time between two comes too late
    longest = settings.lease / 3
    return {
        "socket_timeout": min(settings.socket_timeout, longest),
        "socket_connect_timeout": min(settings.socket_connect_timeout, longest),
    }


def _keepalives(settings: WorkerSettings) -> Iterator[tuple[str, Any]]:
    if settings.socket_keepalive:
        yield "socket_keepalive", True
        yield "socket_keepalive_options", keepalive(settings)
