"""Celery settings for Redis with long tasks.

kombu's Redis transport reads a fixed list of options and ignores all others (`kombu/transport/redis.py`,
`Channel.from_transport_options`).
"""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, TypeVar

from repot.config.entry import TLS_FIELDS, entry, transport_option
from repot.config.urls import REDIS_SCHEMES
from repot.upstream.url_options import read_truth_values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from repot.config.entry import Entry
    from repot.config.settings import WorkerSettings
    from repot.config.urls import ServiceUrl

Address = TypeVar("Address", bound="ServiceUrl")

#: The value of `redis_claim` by which a message is taken and recorded in one step; with the other, BRPOP takes it.
ATOMIC_CLAIM = "atomic"

#: Seconds after which what a worker holds that gives no sign of life is handed out again.
DEFAULT_CLAIM_LEASE_S = 15.0

#: The end of the name that repot's probes have in CLIENT LIST: they consume replies, and never a task.
PROBE_CLIENT = "-probe"

#: Number of scans that are missed if the scanning worker dies or its connection goes silent.
_SCANS_MISSED = 3

_KEEPALIVE_FIELDS = ("keepalive_idle", "keepalive_interval", "keepalive_count")


def transport_entries(settings: WorkerSettings) -> Iterator[Entry]:
    """Yield options for the broker connection, the same for every process on that Redis."""
    yield transport_option("visibility_timeout", settings.visibility_timeout, "visibility_timeout")
    # Celery's manual names two more places; kombu does not read them, but a person must find the same value there
    yield entry("visibility_timeout", settings.visibility_timeout, "visibility_timeout")
    if settings.result_backend.scheme in REDIS_SCHEMES:
        yield entry(
            "result_backend_transport_options.visibility_timeout", settings.visibility_timeout, "visibility_timeout"
        )
    # kombu scans for overdue messages at each `throttle`-th tick of `interval`; its
    # defaults, 10 and 10, mean every 100 s
    yield transport_option("unacked_restore_interval", settings.restore_interval, "restore_interval")
    yield transport_option("unacked_restore_throttle", 1)
    # the scanning process holds a lock, by kombu's default for 300 s: if it dies or goes silent meanwhile, no other
    # process scans for that long. A scan takes far less than an interval, and two at once do no harm: each message is
    # restored in a transaction that watches the hash
    yield transport_option("unacked_mutex_expire", _SCANS_MISSED * settings.restore_interval, "restore_interval")
    yield transport_option("claim", settings.redis_claim, "redis_claim")
    yield transport_option("claim_lease", settings.redis_claim_lease, "redis_claim_lease")
    # kombu passes None for a missing option, which turns redis-py's default off
    yield transport_option("socket_timeout", settings.socket_timeout, "socket_timeout")
    yield transport_option("socket_connect_timeout", settings.socket_connect_timeout, "socket_connect_timeout")
    yield transport_option("socket_keepalive", settings.socket_keepalive, "socket_keepalive")
    if settings.socket_keepalive:
        yield transport_option("socket_keepalive_options", keepalive(settings), *_KEEPALIVE_FIELDS)
    yield transport_option("health_check_interval", settings.health_check_interval, "health_check_interval")
    yield transport_option("client_name", settings.client_name, "client_name")
    if settings.sentinel_master:
        yield transport_option("master_name", settings.sentinel_master, "sentinel_master")


def result_entries(settings: WorkerSettings) -> Iterator[Entry]:
    """Yield options for a Redis result backend, on any broker."""
    yield entry("redis_socket_timeout", settings.socket_timeout, "socket_timeout")
    yield entry("redis_socket_connect_timeout", settings.socket_connect_timeout, "socket_connect_timeout")
    if settings.result_backend.scheme != "redis+socket":
        # redis-py has no such option for a socket file
        yield entry("redis_socket_keepalive", settings.socket_keepalive, "socket_keepalive")
    yield entry("redis_backend_health_check_interval", settings.health_check_interval, "health_check_interval")
    if settings.sentinel_master and settings.result_backend.scheme == "sentinel":
        yield entry("result_backend_transport_options.master_name", settings.sentinel_master, "sentinel_master")
    if settings.result_backend.scheme == "rediss":
        yield entry("redis_backend_use_ssl", client_tls(settings, settings.result_backend), *TLS_FIELDS)


def with_tls(url: Address, settings: WorkerSettings) -> Address:
    """Return the URL of a `rediss://` server with TLS options; any other URL unchanged.

    They go into the URL because `broker_use_ssl` serves both sides of a bridge and its keys differ between the brokers.
    Without options kombu does not verify (`kombu/connection.py`, `_init_params`).
    """
    if url.scheme != "rediss":
        return url
    read_truth_values()
    files = {
        "ssl_ca_certs": settings.tls_ca_certs,
        "ssl_certfile": settings.tls_certificate,
        "ssl_keyfile": settings.tls_key,
    }
    options = {"ssl_cert_reqs": "CERT_REQUIRED" if settings.tls_verify else "CERT_NONE"}
    options |= {name: str(path) for name, path in files.items() if path}

    def complete(server: str) -> str:
        one = type(url)((server,))
        checks = {"ssl_check_hostname": str(_checks_hostname(one, settings)).lower()}
        return one.with_options(options | checks).servers[0]

    return type(url)(tuple(map(complete, url.servers)))


def _checks_hostname(url: ServiceUrl, settings: WorkerSettings) -> bool:
    """Return whether a host's name is checked; redis-py before 6 refuses that for a certificate it does not verify."""
    return settings.tls_verify and url.options().isdisjoint({("ssl_cert_reqs", "none"), ("ssl_cert_reqs", "CERT_NONE")})


def keepalive(settings: WorkerSettings) -> dict[int, int]:
    """Return keepalive options; their keys must be the integers of the socket module.

    macOS calls the first one TCP_KEEPALIVE.
    """
    idle = getattr(socket, "TCP_KEEPIDLE", None) or socket.TCP_KEEPALIVE  # type: ignore[attr-defined,unused-ignore]
    return {
        idle: settings.keepalive_idle,
        socket.TCP_KEEPINTVL: settings.keepalive_interval,
        socket.TCP_KEEPCNT: settings.keepalive_count,
    }


def client_tls(settings: WorkerSettings, url: ServiceUrl) -> dict[str, object]:
    """Return redis-py's TLS options for a server; what its address says has precedence in clients."""
    options: dict[str, object] = {
        "ssl_cert_reqs": ssl.CERT_REQUIRED if settings.tls_verify else ssl.CERT_NONE,
        "ssl_check_hostname": _checks_hostname(url, settings),
    }
    if settings.tls_ca_certs:
        options["ssl_ca_certs"] = str(settings.tls_ca_certs)
    if settings.tls_certificate and settings.tls_key:
        options |= {"ssl_certfile": str(settings.tls_certificate), "ssl_keyfile": str(settings.tls_key)}
    return options
