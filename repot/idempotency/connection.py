"""Connect to the lease store: a single server, one behind Sentinel, or a cluster; Redis or Valkey."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import redis
from redis.backoff import FullJitterBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry
from redis.sentinel import Sentinel

from repot.brokers.redis.client import tls_options
from repot.brokers.redis.error_replies import ERRORS, Meaning, meaning_of
from repot.config.endpoints import endpoints
from repot.config.redis import client_tls, keepalive
from repot.errors import ConfigInvalid, RecordUnreadable, RepotError, StoreMisconfigured, StoreRefused, StoreUnreachable
from repot.upstream.native_threads import sharing_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis.commands.core import Script

    from repot.config import ServiceUrl, WorkerSettings

T = TypeVar("T")

#: Commands and scripts are called in the same way on both.
Client = redis.Redis | RedisCluster

#: Attempts after the first, each 0 to 1 s after the one before. Every script is safe to repeat, so a request whose
#: answer was lost is sent again.
_RETRIES = 2
_BACKOFF_BASE_S, _BACKOFF_CAP_S = 0.05, 1.0

_NO_STORE = "Set WORKER_LEASE_STORE=redis://host:6379/0. Tests need none: repot.idempotency.memory_store.guarded_by."


def open_client(settings: WorkerSettings) -> Client:
    """Return a client of the lease store in the settings; it connects to a single server on first use.

    Raises:
        ConfigInvalid: no setting names a Redis or Valkey.
        StoreUnreachable: no node of a cluster answers.
    """
    url = settings.redis_store_url
    if url is None:
        message = "no Redis or Valkey is named: neither WORKER_LEASE_STORE nor WORKER_RESULT_BACKEND is one"
        raise ConfigInvalid(message, hint=_NO_STORE)
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
    """Return the error of ours for an error reply of the store, or for a missing answer."""
    reply = meaning_of(error)
    why = f"{type(error).__name__}: {error}"
    match reply.meaning:
        case Meaning.REFUSED:
            message = f"the lease store {url} refuses access: {error} ({reply.reason})"
            return StoreRefused(message, hint="Check user, password and rights (docs/rights.md) of WORKER_LEASE_STORE.")
        case Meaning.MISCONFIGURED:
            message = f"the lease store {url} cannot serve: {why} ({reply.reason})"
            return StoreMisconfigured(message, hint="Check WORKER_LEASE_STORE; without it WORKER_RESULT_BACKEND.")
        case Meaning.UNREADABLE:
            message = f"the lease store {url} holds a value of another type under this key: {error}"
            return RecordUnreadable(message, hint="Give each program its own WORKER_LEASE_PREFIX.")
    message = f"the lease store {url} did not answer: {why} ({reply.reason})"
    return StoreUnreachable(message, hint="Check WORKER_LEASE_STORE; without it WORKER_RESULT_BACKEND.")


class StoreConnection:
    """A client of the store and its scripts; threads may share it, and a forked child connects again.

    Where threads are greenlets, each thread of the operating system has a client of its own.
    """

    #: The package whose directory `scripts` holds the scripts, and the script to prepend to each of them.
    package: ClassVar[str]
    prelude: ClassVar[str] = ""
    _texts: ClassVar[dict[str, str]]

    def __init_subclass__(cls) -> None:
        """Read the scripts now: a process that is forked while a thread reads them waits for the thread's imports."""
        scripts = [one for one in (files(cls.package) / "scripts").iterdir() if one.name.endswith(".lua")]
        cls._texts = {one.name.removesuffix(".lua"): one.read_text() for one in scripts}

    def __init__(self, settings: WorkerSettings) -> None:
        """Use the store of the settings; connects on first use."""
        self._settings = settings
        self._clients: dict[int, Client] = {}
        self._scripts: dict[tuple[int, str], Script] = {}

    @property
    def client(self) -> Client:
        """The client; connects on first use."""
        key = sharing_key()
        if key not in self._clients:
            self._clients[key] = open_client(self._settings)
        return self._clients[key]

    def close(self) -> None:
        """Close the connections; where threads are greenlets, those of this thread alone."""
        self._scripts.clear()
        client = self._clients.pop(sharing_key(), None)
        if client is not None:
            client.close()

    def _script(self, name: str) -> Script:
        key = sharing_key(), name
        if key not in self._scripts:
            # any other is a script itself
            text = self._texts.get(self.prelude, "") + self._texts[name] if name in self._texts else name
            self._scripts[key] = self.client.register_script(text)
        return self._scripts[key]

    def run(self, script: str, keys: list[str], argument: str) -> Any:  # noqa: ANN401 - what the script returns
        """Run a script on the values of these keys.

        Raises:
            StoreUnreachable, StoreMisconfigured, StoreRefused: as every request to the store.
            RecordUnreadable: a value is of another type.
        """
        return self._ask(lambda: self._script(script)(keys=keys, args=[argument]))

    def _ask(self, request: Callable[[], T]) -> T:
        """Send a request, and return the store's answer.

        Raises:
            StoreUnreachable: the store is unavailable.
            StoreMisconfigured: no retry helps.
            RecordUnreadable: the value under the key is of another type.
        """
        try:
            return request()
        except ERRORS as error:
            url = self._settings.redis_store_url
            # without a URL there is no client, and no request
            assert url is not None
            raise failure(url, error) from error


def _options(settings: WorkerSettings, url: ServiceUrl) -> dict[str, Any]:
    server = endpoints(url.servers[0].replace("+cluster://", "://"))[0]
    return {
        "db": int(server.path or 0),
        "username": server.user or None,
        "password": server.password or None,
        "decode_responses": True,
        # a PING before a command would cost a round trip
        "health_check_interval": 0,
        "client_name": f"{settings.client_name}-leases",
        "retry": Retry(FullJitterBackoff(cap=_BACKOFF_CAP_S, base=_BACKOFF_BASE_S), _RETRIES),
        **tls_options(server, client_tls(settings, url) if server.is_encrypted else None),
        **_timeouts(settings),
        **dict(_keepalives(settings)),
    }


def _timeouts(settings: WorkerSettings) -> dict[str, float]:
    # a renewal that takes longer than the interval between two comes too late
    longest = settings.lease / 3
    return {
        "socket_timeout": min(settings.socket_timeout, longest),
        "socket_connect_timeout": min(settings.socket_connect_timeout, longest),
    }


def _keepalives(settings: WorkerSettings) -> Iterator[tuple[str, Any]]:
    if settings.socket_keepalive:
        yield "socket_keepalive", True
        yield "socket_keepalive_options", keepalive(settings)
