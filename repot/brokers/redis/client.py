"""Connect to a Redis or Valkey, directly or by Sentinel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from repot.errors import BrokerUnreachable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from repot.config.endpoints import Endpoint

_PORT, _SENTINEL_PORT = 6379, 26379


def open_client(
    server: Endpoint,
    *,
    tls: Mapping[str, Any] | None = None,
    timeout_s: float = 5,
    transport_options: Mapping[str, Any] | None = None,
    sentinels: Sequence[Endpoint] = (),
) -> redis.Redis:
    """Make a client of one server, or of the master that Sentinel names; it connects with its first command.

    `tls` are redis-py's options, `transport_options` kombu's (`master_name`, `sentinel_kwargs`); `sentinels` are all
    servers of a sentinel:// address.

    Raises:
        BrokerUnreachable: the address is Sentinel's, and no master is named.
    """
    options = _options(server, tls, timeout_s)
    if server.scheme == "sentinel":
        return _master(server, sentinels or (server,), options, transport_options or {})
    if server.scheme == "redis+socket":
        return redis.Redis(unix_socket_path=server.host, **options)
    return redis.Redis(host=server.host or "localhost", port=server.port or _PORT, **options)


def tls_options(server: Endpoint, tls: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return redis-py's TLS options for a server, from those of all servers and those in its address."""
    if not server.is_encrypted and tls is None and not server.tls:
        return {}
    # options in the address win, as in kombu
    return {"ssl": True, **(tls or {}), **(server.tls or {})}


def _options(server: Endpoint, tls: Mapping[str, Any] | None, timeout_s: float) -> dict[str, Any]:
    return {
        "db": int(server.path or 0),
        "username": server.user or None,
        "password": server.password or None,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "decode_responses": True,
        # bytes that are not UTF-8 are written back unchanged
        "encoding_errors": "surrogateescape",
        # redis-py would retry for a minute
        "retry": Retry(NoBackoff(), 0),
        **tls_options(server, tls),
    }


def _master(
    server: Endpoint, sentinels: Sequence[Endpoint], options: dict[str, Any], transport: Mapping[str, Any]
) -> redis.Redis:
    """Make a client that asks the sentinels for their master at each connection, as kombu does."""
    name = transport.get("master_name")
    if not name:
        message = f"{server}: the name of Sentinel's master is missing"
        hint = "WORKER_SENTINEL_MASTER names it, or broker_transport_options['master_name']."
        raise BrokerUnreachable(message, hint=hint)
    timeouts = {key: options[key] for key in ("socket_timeout", "socket_connect_timeout", "retry")}
    manager = Sentinel(  # type: ignore[no-untyped-call]
        [(one.host or "localhost", one.port or _SENTINEL_PORT) for one in sentinels],
        min_other_sentinels=transport.get("min_other_sentinels", 0),
        # the password is the master's; the sentinels' own is in sentinel_kwargs
        sentinel_kwargs=timeouts | dict(transport.get("sentinel_kwargs") or {}),
    )
    found: redis.Redis = manager.master_for(name, **options)  # type: ignore[no-untyped-call]
    return found
