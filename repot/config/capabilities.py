"""What each kind of broker does for a Celery application: one table, so that no other code asks which broker it is."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from repot.config.broker_kinds import BrokerKind

#: TLS options as written, under the names that the broker's transport gives them.
TlsOptions: TypeAlias = Mapping[str, Any]


def _no_tls_problem(_options: TlsOptions) -> str:
    return ""


def _no_unread_options(_options: TlsOptions, _known: Collection[str]) -> list[str]:
    return []


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a kind of broker does; the defaults are those of a kind that repot does not know.

    Attributes:
        uses_visibility_timeout: it delivers a message again when a client's visibility timeout has passed.
        can_disable_prefetch: it honours `worker_disable_prefetch`.
        has_heartbeats: it closes a connection that sends no heartbeat.
        delays_messages: it can hold a message back until its ETA.
        reads_queue_arguments: it honours arguments such as `x-message-ttl`.
        has_dead_letter_exchanges: it keeps a rejected message where its queue says.
        limits_deliveries: its quorum queues give a message up after a number of deliveries.
        keeps_results_in_memory: its results take memory until they expire.
        names_by_options: the transport options by which clients name where messages are.
        socket_options: the transport option that holds the options of the socket.
        default_login: user and password that it accepts from its own machine unless that was changed.
        verified_tls: a line of configuration for TLS with a verified certificate.
        transport: the name of the library's transport (`repot/upstream/collector.py`, `transport_options`).
        more_transport_options: options that it reads beside those that it lists.
        takes_tls_without_options: `broker_use_ssl = True` is TLS; kombu's Redis transport passes over it.
        unread_tls_options: returns the keys of `broker_use_ssl` that its transport does not read, of those and of the
            names that its library takes.
        certificate_problem: returns what keeps TLS options from verifying the certificate; empty if nothing does.
    """

    uses_visibility_timeout: bool = False
    can_disable_prefetch: bool = False
    has_heartbeats: bool = False
    delays_messages: bool = False
    reads_queue_arguments: bool = False
    has_dead_letter_exchanges: bool = False
    limits_deliveries: bool = False
    keeps_results_in_memory: bool = False
    names_by_options: frozenset[str] = frozenset()
    socket_options: str = ""
    default_login: tuple[str, str] = ("", "")
    verified_tls: str = ""
    transport: str = ""
    more_transport_options: frozenset[str] = frozenset()
    takes_tls_without_options: bool = False
    unread_tls_options: Callable[[TlsOptions, Collection[str]], list[str]] = _no_unread_options
    certificate_problem: Callable[[TlsOptions], str] = _no_tls_problem


def capabilities_of(kind: BrokerKind | None) -> Capabilities:
    """Return what a kind of broker does."""
    return _TABLE.get(kind, Capabilities()) if kind else Capabilities()


def tls_read_by(kind: BrokerKind | None, given: object) -> TlsOptions | None:
    """Return what a transport reads of `broker_use_ssl`; {} for TLS without options, None if it is for another kind."""
    capabilities = capabilities_of(kind)
    if not isinstance(given, dict):
        return {} if given and capabilities.takes_tls_without_options else None
    # of those that begin as Redis' do, py-amqp takes one (amqp/transport.py, SSLTransport)
    return None if capabilities.unread_tls_options(given, {"ssl_version"}) else given


#: Read beside the list: kombu/transport/redis.py, Transport and Channel._connparams; and by repot's transport.
_REDIS_OPTIONS = frozenset({"polling_interval", "reauth_check_interval", "claim", "claim_lease"})
_RABBITMQ_OPTIONS = frozenset({"confirm_publish", "socket_settings", "read_timeout", "write_timeout"})


def _unread_on_redis(options: TlsOptions, _known: Collection[str]) -> list[str]:
    return [str(key) for key in options if not str(key).startswith("ssl")]


def _unread_on_rabbitmq(options: TlsOptions, known: Collection[str]) -> list[str]:
    return [str(key) for key in options if str(key).startswith("ssl_") and key not in known]


def _required(options: TlsOptions) -> Any:  # noqa: ANN401 - whatever the application writes
    return options.get("ssl_cert_reqs", options.get("cert_reqs"))


def _redis_certificate_problem(options: TlsOptions) -> str:
    return "" if _required(options) in (ssl.CERT_REQUIRED, "required") else "has no ssl_cert_reqs=CERT_REQUIRED"


def _rabbitmq_certificate_problem(options: TlsOptions) -> str:
    if _required(options) == ssl.CERT_NONE:
        return "has cert_reqs CERT_NONE"
    return "" if "server_hostname" in options else "does not verify the host name in the certificate"


_TABLE = {
    BrokerKind.REDIS: Capabilities(
        uses_visibility_timeout=True,
        can_disable_prefetch=True,
        keeps_results_in_memory=True,
        names_by_options=frozenset({"global_keyprefix", "sep", "priority_steps"}),
        socket_options="socket_keepalive_options",
        verified_tls="app.conf.broker_use_ssl = {'ssl_cert_reqs': ssl.CERT_REQUIRED, 'ssl_ca_certs': '/path'}  # Redis",
        transport="redis",
        more_transport_options=_REDIS_OPTIONS,
        unread_tls_options=_unread_on_redis,
        certificate_problem=_redis_certificate_problem,
    ),
    BrokerKind.RABBITMQ: Capabilities(
        has_heartbeats=True,
        delays_messages=True,
        reads_queue_arguments=True,
        has_dead_letter_exchanges=True,
        limits_deliveries=True,
        socket_options="socket_settings",
        default_login=("guest", "guest"),
        verified_tls="app.conf.broker_use_ssl = "
        "{'cert_reqs': ssl.CERT_REQUIRED, 'ca_certs': '/path', 'server_hostname': None}  # RabbitMQ",
        transport="amqp",
        more_transport_options=_RABBITMQ_OPTIONS,
        takes_tls_without_options=True,
        unread_tls_options=_unread_on_rabbitmq,
        certificate_problem=_rabbitmq_certificate_problem,
    ),
}


#: Options of `kombu.Connection` itself (`_extract_failover_opts`), on any transport.
FAILOVER_OPTIONS = frozenset(
    {
        "callback",
        "connect_retries_timeout",
        "errback",
        "interval_max",
        "interval_start",
        "interval_step",
        "max_retries",
    }
)


#: Transport options that name keys on Redis: who reads with others sees other queues.
NAMING_OPTIONS = ("fanout_prefix", "global_keyprefix", "priority_steps", "sep", "unacked_index_key", "unacked_key")


def all_transport_options(listed: Mapping[str, Collection[str]]) -> frozenset[str]:
    """Return the names of the transport options that any transport reads; `listed` are those that each lists itself."""
    return frozenset[str]().union(
        *(one.more_transport_options.union(listed.get(one.transport, ())) for one in _TABLE.values())
    )


def verified_tls_examples() -> str:
    """Return a line of configuration for each kind of broker: TLS with a verified certificate."""
    return "\n".join(one.verified_tls for one in _TABLE.values())
