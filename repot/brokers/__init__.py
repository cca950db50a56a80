"""The port to a broker, the registry of its adapters, and repot's two adapters."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

# repot's adapters register themselves; others are entry points (`repot/config/broker_kinds.py`)
import repot.brokers.rabbitmq
import repot.brokers.redis  # noqa: F401
from repot.brokers.facts import RabbitFacts, RedisFacts, Unknown, known
from repot.brokers.port import Broker, Depth
from repot.brokers.registry import BrokerFacts, ConnectOptions, InspectOptions, adapter_for
from repot.config import Role, celery_config
from repot.config.redis import with_tls
from repot.errors import BrokerUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from repot.config import BrokerUrl, WorkerSettings
    from repot.config.endpoints import Endpoint

__all__ = [
    "Broker",
    "BrokerFacts",
    "Depth",
    "RabbitFacts",
    "RedisFacts",
    "Unknown",
    "inspect",
    "known",
    "open_broker",
    "open_configured",
]


def open_broker(
    url: BrokerUrl,
    *,
    management_url: str = "",
    depth_lag_s: float | None = None,
    tls: Mapping[str, Any] | None = None,
    transport_options: Mapping[str, Any] | None = None,
    timeout_s: float = 5,
    only_publish: bool = False,
) -> Broker:
    """Connect to a broker by the adapter for its address; the options are those of `ConnectOptions`.

    Raises:
        BrokerUnreachable: it does not answer, or the address has no server.
    """
    options = ConnectOptions(tls, transport_options, management_url, depth_lag_s, timeout_s, only_publish)
    return adapter_for(url.kind, url).open(url, options)


def open_configured(
    url: BrokerUrl,
    settings: WorkerSettings,
    *,
    management_url: str = "",
    options: Mapping[str, Any] | None = None,
    only_publish: bool = False,
) -> Broker:
    """Connect to a broker with the settings' TLS and timeouts; `options` count more than their transport options.

    Raises:
        BrokerUnreachable: it does not answer, or the address has no server.
        ConfigInvalid: another setting does not go with the address.
    """
    # one broker at a time: TLS options differ between the kinds
    config = celery_config(settings.at(url.reveal()), Role.CLIENT)
    return open_broker(
        with_tls(url, settings),
        management_url=management_url,
        tls=config.get("broker_use_ssl"),
        transport_options={**(config.get("broker_transport_options") or {}), **(options or {})},
        timeout_s=settings.socket_timeout,
        only_publish=only_publish,
    )


def inspect(
    servers: Iterable[Endpoint],
    *,
    tls: Mapping[str, Any] | None = None,
    management_url: str = "",
    queues: Iterable[str] = (),
    key_prefix: str = "",
    transport_options: Mapping[str, Any] | None = None,
    skip_replicas: bool = False,
) -> Any:  # noqa: ANN401 - `RedisFacts`, `RabbitFacts`, or the class of an added adapter
    """Return the facts of the first server that answers; change nothing there.

    The options are those of `ConnectOptions` and `InspectOptions`.

    Raises:
        BrokerUnreachable: no server answers; with the last one's reason.
        AccessRefused, TlsFailed: a server answers but lets no one in with these credentials or certificates.
    """
    connect = ConnectOptions(tls, transport_options, management_url)
    options = InspectOptions(tuple(queues), key_prefix, skip_replicas)
    failure = BrokerUnreachable("the address names no server")
    for kind, group in groupby(servers, lambda one: one.kind):
        of_kind = tuple(group)
        try:
            return adapter_for(kind, of_kind[0]).inspect(of_kind, connect, options)
        except BrokerUnreachable as error:
            if type(error) is not BrokerUnreachable:
                raise
            failure = error
    raise failure
