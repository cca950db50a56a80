"""RabbitMQ: the adapter of the port, and what only RabbitMQ has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repot.brokers.registry import Adapter, ConnectOptions, InspectOptions, register
from repot.config.broker_kinds import BrokerKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repot.brokers.facts import RabbitFacts
    from repot.brokers.rabbitmq.adapter import RabbitBroker
    from repot.config import BrokerUrl
    from repot.config.endpoints import Endpoint


# the client library is imported where it is used: a worker on Redis needs none of this
def _open(url: BrokerUrl, options: ConnectOptions) -> RabbitBroker:
    from repot.brokers.rabbitmq.adapter import RabbitBroker

    return RabbitBroker(url, options)


def _inspect(servers: Sequence[Endpoint], connect: ConnectOptions, options: InspectOptions) -> RabbitFacts:
    from repot.brokers.rabbitmq.inspect import inspect

    del options
    return inspect(servers, connect)


register(Adapter(BrokerKind.RABBITMQ, _open, _inspect))
