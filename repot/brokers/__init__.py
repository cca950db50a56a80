"""The port to a broker, its two adapters, what brokers say of themselves, and private servers for experiments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repot.brokers.facts import RabbitFacts, RedisFacts, Unknown, known
from repot.brokers.port import Broker, Depth
from repot.config.endpoints import BrokerKind
from repot.errors import BrokerUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from repot.config import BrokerUrl
    from repot.config.endpoints import Endpoint

__all__ = ["Broker", "Depth", "RabbitFacts", "RedisFacts", "Unknown", "known", "open_broker", "survey"]


def open_broker(
    url: BrokerUrl,
    *,
    management_url: str = "",
    depth_lag_s: float | None = None,
    tls: Mapping[str, Any] | None = None,
    transport_options: Mapping[str, Any] | None = None,
    timeout_s: float = 5,
) -> Broker:
    """Open the adapter for an address; its scheme decides which.

    `management_url` is the address of RabbitMQ's management API, port 15672 of the
    broker without it, and `depth_lag_s` the age its counts may have; both mean
    nothing to Redis. `tls` is Celery's `broker_use_ssl`, `transport_options` its
    `broker_transport_options`: on Redis they name the keys.

    Raises:
        BrokerUnreachable: it does not answer.
    """
    if url.is_serverless:
        message = f"{url} has no server that could be asked"
        raise BrokerUnreachable(message, hint="Such an address is for an application's own tests.")
    if url.is_redis:
        from repot.brokers.redis import RedisBroker

        return RedisBroker(url, tls=tls, transport_options=transport_options, timeout_s=timeout_s)
    from repot.brokers.rabbitmq import DEFAULT_DEPTH_LAG_S, RabbitBroker

    lag_s = DEFAULT_DEPTH_LAG_S if depth_lag_s is None else depth_lag_s
    return RabbitBroker(url, management_url, lag_s, tls=tls, timeout_s=timeout_s)


def survey(
    servers: Iterable[Endpoint],
    *,
    tls: Mapping[str, Any] | None = None,
    management_url: str = "",
    queues: Iterable[str] = (),
    key_prefix: str = "",
    transport_options: Mapping[str, Any] | None = None,
    passes_over_replicas: bool = False,
) -> RedisFacts | RabbitFacts:
    """Ask the first server that answers what it is and how it is set up; change nothing.

    `tls` is Celery's `broker_use_ssl`, empty where that is True. On Redis the messages of `queues` are
    measured, under `key_prefix`; `management_url` is RabbitMQ's. `transport_options` are kombu's: Sentinel's
    master is named there. With `passes_over_replicas` a Redis that is a replica is the answer only where no later
    server of the list is a primary, as for an application that repot configured (`repot/brokers/primary.py`).

    Raises:
        BrokerUnreachable: none answers; the last one's reason.
        AccessRefused, TlsFailed: one answers, and does not let us in.
    """
    failure: BrokerUnreachable | None = None
    replica: RedisFacts | None = None
    servers = tuple(servers)
    # sentinels are asked together for one master
    for server in servers[:1] if servers and servers[0].scheme == "sentinel" else servers:
        try:
            if server.kind is BrokerKind.REDIS:
                from repot.brokers import redis_survey

                lists = [f"{key_prefix}{queue}" for queue in queues]
                found = redis_survey.survey(
                    server,
                    tls=tls,
                    lists=lists,
                    prefix=key_prefix,
                    transport_options=transport_options,
                    sentinels=servers,
                )
                if not (passes_over_replicas and found.is_replica):
                    return found
                replica = replica or found
                continue
            from repot.brokers import rabbitmq_survey

            return rabbitmq_survey.survey(server, tls=tls, management_url=management_url)
        except BrokerUnreachable as error:
            if type(error) is not BrokerUnreachable:
                raise
            failure = error
    if replica is not None:
        return replica
    raise failure or BrokerUnreachable("the address names no server")
