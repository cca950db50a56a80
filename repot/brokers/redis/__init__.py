"""Redis and Valkey: the adapter of the port, and what only they have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.brokers.registry import Adapter, ConnectOptions, InspectOptions, register
from repot.config.broker_kinds import BrokerKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repot.brokers.facts import RedisFacts
    from repot.brokers.redis.adapter import RedisBroker
    from repot.config import BrokerUrl
    from repot.config.endpoints import Endpoint


# the client library is imported where it is used: a worker on RabbitMQ needs none of this
def _open(url: BrokerUrl, options: ConnectOptions) -> RedisBroker:
    from repot.brokers.redis.adapter import RedisBroker

    return RedisBroker(url, options)


def _inspect(servers: Sequence[Endpoint], connect: ConnectOptions, options: InspectOptions) -> RedisFacts:
    from repot.brokers.redis.inspect import inspect

    return inspect(servers, connect, options)


register(Adapter(BrokerKind.REDIS, _open, _inspect))
